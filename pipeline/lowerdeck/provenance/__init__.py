"""The lineage of a build: a chain of artifacts."""
