"""Explain which path a catalog took through its decision tree, as text or as a flowchart."""
