"""What a build was made of, as a chain of artifacts."""
