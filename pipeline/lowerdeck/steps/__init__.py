"""The six pure steps: plain typed arguments in, values out, without file access."""
