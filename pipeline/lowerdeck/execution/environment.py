"""Environment variables that must be set before a stage starts, and the output of libraries."""

from __future__ import annotations

import logging
import os
import re
import sys
import warnings

# The order of sets and the instruction set for which oneDNN chooses its kernels would otherwise vary between processes
# and machines, and with them ranges and programs. Python and oneDNN read these variables only when they start.
_FIXED_ENVIRONMENT = {"PYTHONHASHSEED": "0", "ONEDNN_MAX_CPU_ISA": "AVX2"}
VERBOSE = "LOWERDECK_VERBOSE"
"""Set to 1 to show the warnings of libraries."""


def fixed_environment() -> dict[str, str]:
    """The variables that must be set before a stage starts."""
    fixed = dict(_FIXED_ENVIRONMENT)
    if not os.environ.get(VERBOSE):
        fixed["TORCH_LOGS"] = os.environ.get("TORCH_LOGS", "-all")
    return fixed


def fix_environment(module: str) -> None:
    """Restart this process with the variables that cannot be set later, unless they are set."""
    fixed = fixed_environment()
    if any(os.environ.get(key) != value for key, value in fixed.items()):
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], os.environ | fixed)  # noqa: S606


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
