"""Making, checking and restarting vector envs."""
