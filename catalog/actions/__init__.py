"""Action converters, masks and embeddings, and checks that try action models on samples."""
