"""What every stage entry does around its work."""
