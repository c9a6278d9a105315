"""The examination of an env before a training: findings with remedies, and a page of them."""
