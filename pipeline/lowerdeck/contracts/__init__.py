"""What modules of the pipeline expect of one another: errors, value types and Protocols.

This package imports nothing else of the project, and torch for annotations only, so that configuration can be checked
without the seconds that torch takes to import.

Shape legend used in docstrings: n number of samples, b batch, c channels or classes, h height, w width.
"""
