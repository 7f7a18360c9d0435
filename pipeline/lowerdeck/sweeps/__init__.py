"""Sweeps: builds of many points that share every stage whose inputs are the same."""
