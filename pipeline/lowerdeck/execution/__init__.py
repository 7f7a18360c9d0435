"""What stage entries share: environment, preload server, and the parts that the configuration chooses."""
