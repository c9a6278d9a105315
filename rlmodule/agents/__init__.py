"""Several agents: their envs, and sampling from them. Runs with one agent import nothing from this package."""
