"""Results of a build as values, for the terminal, the page and MLflow."""
