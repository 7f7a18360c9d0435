"""Files that stages hand to one another: the only package that knows their names and formats.

Everything is written to a temporary name beside its place and moved there, so that a stage that fails or is killed
leaves what was there before. JSON has sorted keys and no time stamps: the same build gives the same bytes.
"""
