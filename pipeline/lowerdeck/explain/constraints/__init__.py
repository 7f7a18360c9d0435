"""What mends the refusals of single checks, a module a backend; the checks are those of ExecuTorch 1.5.1."""
