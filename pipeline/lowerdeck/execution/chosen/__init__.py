"""Creates the parts that the configuration chooses, for the step that uses them."""
