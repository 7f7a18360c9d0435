"""What the configuration chooses, made for the step that uses it."""
