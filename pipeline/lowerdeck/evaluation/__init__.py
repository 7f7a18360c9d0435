"""Quality of a build: gates, defects, layer-by-layer SQNR, intervals of shares, and quantization error."""
