"""Changes to third-party code, each with its reason: the only package that assigns to attributes of foreign modules.

Each module declares the replacements in one library; their users provide the replacing objects.
"""
