"""Results of stages that sweeps reuse, under digests of everything that they depend on."""
