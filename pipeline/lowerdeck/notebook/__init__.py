"""Lowerdeck from Python: builds, sweeps and recorded runs as values, with HTML for notebooks."""
