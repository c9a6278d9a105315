"""Sampling: env runners and the storage they fill."""
