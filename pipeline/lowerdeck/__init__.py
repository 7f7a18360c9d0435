"""Lowerdeck: PyTorch models to quantized, delegated ExecuTorch programs for edge processors."""
