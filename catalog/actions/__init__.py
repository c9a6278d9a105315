"""From distribution samples to actions: converters, masks, embeddings and autoregressive action models."""
