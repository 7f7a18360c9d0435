"""From a recorded build back to params.yaml: what `lowerdeck promote` does."""
