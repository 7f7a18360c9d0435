"""Which Vela a flavor names, and where it runs."""

from __future__ import annotations

import subprocess
import sys
from functools import lru_cache

from lowerdeck.backends.ethos_u.options import FlavorOptions
from lowerdeck.contracts.backends import Flavor
from lowerdeck.contracts.converter import Converter
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.registry import interpreters

PACKAGE = "ethos-u-vela"
_ASK = f"import importlib.metadata, ethosu.vela.vela; print(importlib.metadata.version({PACKAGE!r}))"
"""Imports Vela as well: a package without what it needs has a version, too."""


def interpreter(options: FlavorOptions) -> str:
    """The interpreter that runs Vela."""
    return sys.executable if options.python is None else str(interpreters.expanded(options.python))


def converter(flavor: Flavor[FlavorOptions]) -> Converter:
    """The Vela of a flavor.

    Raises:
        LowerdeckError: it is not installed there, or cannot be imported.
    """
    if flavor.options.python is None:
        return Converter.of_package(PACKAGE, flavor=flavor.name, requirement="lowerdeck[ethos-u]")
    version = _version(interpreter(flavor.options), flavor.timeout_s)
    return Converter(flavor=flavor.name, name=PACKAGE, version=version)


@lru_cache
def _version(python: str, timeout_s: float) -> str:
    """The version of Vela that `python` imports; asked once in a process, because it takes a second."""
    install = f"`{python} -m pip install {PACKAGE}==5.1.0` installs a release"
    try:
        # Isolated: neither this environment's PYTHONPATH nor the current folder.
        asked = subprocess.run(
            [python, "-I", "-c", _ASK], capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LowerdeckError(f"{python} cannot be asked for its version of Vela: {error}; {install}") from None
    if asked.returncode != 0:
        said = (asked.stderr.strip().splitlines() or [f"it ended with exit code {asked.returncode}"])[-1]
        raise LowerdeckError(f"{python} has no Vela that can be used: {said}; {install}")
    return asked.stdout.strip()
