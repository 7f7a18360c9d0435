"""Measurements of the pipeline against a peer in the same run; docs/benchmarks.md has the metrics."""
