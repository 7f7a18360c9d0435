"""A program that every runtime of ExecuTorch can execute, with outputs that are known exactly."""
