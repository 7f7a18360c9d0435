"""How good a build is: gates, layer-by-layer SQNR, intervals of shares, and quantization error."""
