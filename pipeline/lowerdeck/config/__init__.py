"""Configuration: schema.py defines it, compose.py makes it, load.py reads it for a stage."""
