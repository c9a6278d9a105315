"""Learning: learners, optimizers and minibatches."""
