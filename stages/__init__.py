"""Entries of the DVC stages: each reads its configuration and inputs, calls one step and writes what it returns."""

import signal
import sys
from pathlib import Path

# Ctrl-C while a stage imports ends it without a traceback, until run_stage handles it. `-m` is there for as long as
# Python looks for the module that it is to run: other processes that import this package keep their handler.
if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

# A workspace with its own sources, such as this repository, runs them instead of a package installed elsewhere.
if (sources := Path(__file__).parents[1] / "pipeline").is_dir() and str(sources) not in sys.path:
    sys.path.insert(0, str(sources))
