"""What a build is worth, as values: for the terminal, the page and MLflow."""
