"""Entries of the DVC stages: each reads its configuration and inputs, calls one step and writes what it returns."""

import sys
from pathlib import Path

# A workspace with sources of its own, as this repository is, runs these and not a package that is installed elsewhere.
if (sources := Path(__file__).parents[1] / "pipeline").is_dir() and str(sources) not in sys.path:
    sys.path.insert(0, str(sources))
