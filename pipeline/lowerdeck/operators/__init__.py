"""Operator conformance: documented claims about a backend's operators, compared with the installed versions.

claims/ has the documentation's claims, and cases/ a minimal module for each of their rows and constraints. measure.py
lowers and executes these as a build would; page.py shows claims next to results. docs/operators/README.md explains the
pages.
"""
