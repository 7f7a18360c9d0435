"""Configuration: schema.py says what there is, compose.py makes build/config.yaml, load.py reads it for a stage."""
