"""How a model becomes a quantized one: annotation, observers, training, and what is known of its tensors."""
