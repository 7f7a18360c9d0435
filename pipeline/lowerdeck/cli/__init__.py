"""Commands of `lowerdeck` of more than a few lines: each module has `add`, which adds its command to the parser."""
