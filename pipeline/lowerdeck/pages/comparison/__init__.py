"""The page of lowerdeck compare."""
