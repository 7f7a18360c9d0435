"""Configuration: schema.py defines it, compose.py writes build/config.yaml, load.py reads it for a stage."""
