"""Workspaces in users' own repositories: made, brought up to date, and extended by parts of their own."""
