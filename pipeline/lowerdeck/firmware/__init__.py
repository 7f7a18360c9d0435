"""Step firmware: converted program -> the files that firmware needs to use it."""
