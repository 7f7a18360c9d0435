"""Results of stages that the points of sweeps share, under digests of all that they were made of."""
