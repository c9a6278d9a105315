"""Rollouts, episodes and sequences: the data that env runners return and learners consume."""
