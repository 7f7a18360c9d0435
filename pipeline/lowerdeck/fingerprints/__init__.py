"""What a result depends on: code, configuration, inputs and tools. Nothing else decides what is still valid."""
