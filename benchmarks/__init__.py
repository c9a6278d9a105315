"""Our speed and that of the same work done without a framework; `python -m benchmarks.run` measures everything."""
