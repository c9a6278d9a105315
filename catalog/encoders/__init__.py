"""Encoders and heads: each file holds a net's config, its module and its registration."""
