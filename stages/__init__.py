"""Entries of the DVC stages: each reads its configuration and inputs, calls one step and writes what it returns."""

import sys
from pathlib import Path

# A workspace with its own sources, such as this repository, runs them instead of a package installed elsewhere.
if (sources := Path(__file__).parents[1] / "pipeline").is_dir() and str(sources) not in sys.path:
    sys.path.insert(0, str(sources))
