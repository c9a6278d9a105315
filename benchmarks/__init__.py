"""Our speed beside the same work done without a framework; `python -m benchmarks.run` measures everything."""
