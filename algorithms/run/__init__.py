"""A run: session, folder, progress, evaluation, callbacks and pictures."""
