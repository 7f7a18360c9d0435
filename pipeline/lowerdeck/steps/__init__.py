"""The six pure steps: plain typed arguments in, values out; no step reads or writes files."""
