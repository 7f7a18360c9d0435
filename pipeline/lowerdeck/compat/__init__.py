"""Changes to other people's code, each with its reason."""
