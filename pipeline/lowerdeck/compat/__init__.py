"""Changes to other people's code, each with its reason: the one package that assigns to attributes of foreign modules.

What is replaced is declared here, one module for each library; what stands in its place belongs to its users.
"""
