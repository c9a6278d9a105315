"""Env runners, and the storage that they fill."""
