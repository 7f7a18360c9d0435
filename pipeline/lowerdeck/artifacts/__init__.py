"""Files that stages exchange: the only package that knows their names and formats.

Every file is written under a temporary name next to its destination and then moved, so that a stage that fails or is
killed leaves the previous file. JSON has sorted keys and no time stamps: equal builds give equal bytes.
"""
