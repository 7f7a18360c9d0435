"""How to avoid the refusals of single checks of ExecuTorch 1.5.1, one module per backend."""
