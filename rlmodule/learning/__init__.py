"""Learners, their optimizers, and the minibatches that they train on."""
