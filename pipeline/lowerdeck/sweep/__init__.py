"""Sweeps: many points of the configuration, each stage run once for all points that agree in what it depends on."""
