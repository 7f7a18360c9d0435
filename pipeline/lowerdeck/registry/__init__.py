"""Finds components by their location or import path, and the arguments that they accept."""
