"""Action converters, masks and embeddings, and the trials of action models."""
