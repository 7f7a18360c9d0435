"""The page of lowerdeck explain."""
