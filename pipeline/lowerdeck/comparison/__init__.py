"""Comparison of builds for a choice between them: what differs, what is best, and what is only noise."""
