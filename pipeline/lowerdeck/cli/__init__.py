"""Commands of `lowerdeck` that are more than a few lines: each module has `add`, which describes its command."""
