"""Components found by their place or named by import path, and what arguments they take."""
