"""The delegation plan: how it is built, what is excluded from it, how it is verified, and what it covers."""
