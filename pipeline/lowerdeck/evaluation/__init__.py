"""Quality of a build: gates, layer-by-layer SQNR, intervals of shares, and quantization error."""
