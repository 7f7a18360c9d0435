"""Step firmware: the converted program -> all that its use in firmware needs, as files by name."""
