"""Builds side by side, so that a person can choose between them: what differs, what is best, and what is only noise."""
