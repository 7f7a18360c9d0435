"""Environment variables that must be set before a stage or command starts, and the output of libraries."""

from __future__ import annotations

import logging
import os
import re
import sys
import warnings
from pathlib import Path

# The order of sets, and the instructions for which libraries choose their kernels, would otherwise vary between
# processes and machines, and with them the last bits of sums, ranges and programs. Libraries read these variables only
# when they start. In any other mode MKL has kernels of their own for Intel's and for AMD's processors.
_FIXED_ENVIRONMENT = {"PYTHONHASHSEED": "0", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "COMPATIBLE"}
_FIXED_WITH_AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_KNL AVX512_KNM AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL",
}
"""Not for other processors: these would execute instructions that they lack."""
VERBOSE = "LOWERDECK_VERBOSE"
"""Set to 1 to show the warnings of libraries."""


def fixed_environment() -> dict[str, str]:
    """The variables that must be set before a process that executes models starts."""
    fixed = _FIXED_ENVIRONMENT | (_FIXED_WITH_AVX2 if _has_avx2() else {})
    if not os.environ.get(VERBOSE):
        fixed["TORCH_LOGS"] = os.environ.get("TORCH_LOGS", "-all")
    return fixed


def searching_environment() -> dict[str, str]:
    """The variables of this process without the one that keeps Python from searching the folder with the stages."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}


def _has_avx2() -> bool:
    """Whether the first processor's line of features names AVX2; False where the system does not tell."""
    try:
        with Path("/proc/cpuinfo").open() as lines:
            return "avx2" in next((line for line in lines if line.startswith("flags")), "").split()
    except OSError:
        return False


def fix_environment() -> None:
    """Restart this process with the variables that cannot be set later, unless they are set."""
    fixed = fixed_environment()
    if any(os.environ.get(key) != value for key, value in fixed.items()):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | fixed)  # noqa: S606


def quiet_libraries() -> None:
    """Hide warnings of libraries."""
    if os.environ.get(VERBOSE):
        return
    os.environ.setdefault("TORCH_LOGS", "-all")  # has an effect only before torch is imported
    warnings.filterwarnings("ignore")
    logging.basicConfig()
    for handler in logging.getLogger().handlers:
        handler.setLevel(logging.ERROR)
        handler.addFilter(ToldOnce())
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # logs tracebacks of what it raises


class ToldOnce(logging.Filter):
    """Lets a message of a library pass once, however many nodes or constants it is about."""

    def __init__(self) -> None:
        super().__init__()
        self._told: set[tuple[str, int, str]] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether no message of this logger differed from it in numbers and quoted names alone."""
        text = re.sub(r"\d+|'[^']*'", "", str(record.msg))
        key = (record.name, record.levelno, text)
        is_new = key not in self._told
        self._told.add(key)
        return is_new
