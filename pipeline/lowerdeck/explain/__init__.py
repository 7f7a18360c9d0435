"""Explanations of plans: why nodes are not delegated, how they could be, and what changed between two plans."""
