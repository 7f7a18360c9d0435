"""Operator conformance: what documentation claims of a backend's operators, and what the installed versions do.

claims/ holds what the texts say, cases/ a minimal module for every row and every constraint of them, measure.py lowers
and executes these as a build would, and table.py sets both side by side. docs/operators/README.md tells how to read it.
"""
