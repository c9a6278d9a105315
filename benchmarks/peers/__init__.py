"""The same jobs in other libraries, each in an environment of its own; see `benchmarks.peers.run`."""
