"""Back from a recorded build to params.yaml: what `lowerdeck promote` does."""
