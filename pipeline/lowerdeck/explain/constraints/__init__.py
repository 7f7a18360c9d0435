"""What avoids the refusals of single checks, one module per backend; the checks are those of ExecuTorch 1.5.1."""
