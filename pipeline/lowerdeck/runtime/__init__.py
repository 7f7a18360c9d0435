"""Execution of a `.pte` on the host, by ExecuTorch's runtime or by an interpreter with host twins for delegates."""
