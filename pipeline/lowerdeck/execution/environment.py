"""Variables that have to stand before a stage starts, and what libraries may print."""

from __future__ import annotations

import logging
import os
import sys
import warnings

# Variables that have to stand before Python or PyTorch start: the order of sets, and the instruction set by which
# oneDNN chooses its kernels, would otherwise vary between processes and machines, and with them ranges and programs.
_FIXED_ENVIRONMENT = {"PYTHONHASHSEED": "0", "ONEDNN_MAX_CPU_ISA": "AVX2"}


VERBOSE = "LOWERDECK_VERBOSE"
"""Set to 1 it shows what libraries warn of."""


def fixed_environment() -> dict[str, str]:
    """The variables that have to stand before a stage starts."""
    fixed = dict(_FIXED_ENVIRONMENT)
    if not os.environ.get(VERBOSE):
        fixed["TORCH_LOGS"] = os.environ.get("TORCH_LOGS", "-all")
    return fixed


def fix_environment(module: str) -> None:
    """Start this process again with the variables that cannot be set later, unless they are."""
    fixed = fixed_environment()
    if any(os.environ.get(key) != value for key, value in fixed.items()):
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], os.environ | fixed)  # noqa: S606


def quiet_libraries() -> None:
    """Keep deprecation notes of libraries off the terminal."""
    if os.environ.get(VERBOSE):
        return
    os.environ.setdefault("TORCH_LOGS", "-all")  # heeded where torch is not imported yet
    warnings.filterwarnings("ignore")
    logging.basicConfig()
    for handler in logging.getLogger().handlers:
        handler.setLevel(logging.ERROR)
