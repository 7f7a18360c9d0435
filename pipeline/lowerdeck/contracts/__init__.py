"""The interfaces between modules of the pipeline: errors, value types and Protocols.

This package imports nothing else of the project, and torch for annotations only: importing torch takes seconds, and
checking configuration must not.

Shape legend used in docstrings: n number of samples, b batch, c channels or classes, h height, w width.
"""
