"""Entries of the DVC stages: each reads its configuration and inputs, calls one step and writes what it returns."""
