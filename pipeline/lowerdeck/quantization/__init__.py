"""Quantization of a model: annotation, observers, training, sensitivity, and facts about quantized tensors."""
