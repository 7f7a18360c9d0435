"""Executes host twins in batches, with every integer equal to the reference's."""
