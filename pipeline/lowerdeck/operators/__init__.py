"""Operator conformance: what documentation claims of a backend's operators, and what the installed versions do.

claims/ holds what the documentation says and cases/ a minimal module for each of its rows and constraints. measure.py
lowers and executes these as a build would, and page.py shows claims beside results. docs/operators/README.md explains
how to read them.
"""
