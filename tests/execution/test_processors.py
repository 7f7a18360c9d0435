"""Results do not depend on the processor: the same operators on this one and on another one that QEMU emulates."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lowerdeck.execution.environment import fixed_environment
from tests.project import REPOSITORY

EMULATOR = "qemu-x86_64-static"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(shutil.which(EMULATOR) is None, reason="apt-get install qemu-user-static"),
]


def digests(*emulator: str, fixed: bool = True) -> dict[str, str]:
    """The digest of what each operator returns, in a process that `emulator` executes."""
    free = {name: value for name, value in os.environ.items() if name not in fixed_environment()}
    packages = str(Path(torch.__file__).parents[1])
    path = os.pathsep.join((str(REPOSITORY), str(REPOSITORY / "pipeline"), packages))
    finished = subprocess.run(
        [*emulator, os.path.realpath(sys.executable), "-m", "tests.execution.processor_digests"],
        env=free | {"PYTHONPATH": path} | (fixed_environment() if fixed else {}),
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
    )
    assert finished.returncode == 0, finished.stderr
    lines = (line.rpartition(" ") for line in finished.stdout.splitlines())
    return {name: digest for name, _, digest in lines}


def test_results_do_not_depend_on_the_processor() -> None:
    here, there = digests(), digests(EMULATOR, "-cpu", "Haswell")
    assert len(here) > 40
    assert there == here  # numpy's tanh of float64 is not among them: QEMU 7.2 computes it with errors


def test_without_the_fixed_environment_they_do() -> None:
    intel, amd = (digests(EMULATOR, "-cpu", processor, fixed=False) for processor in ("Haswell", "EPYC"))
    assert intel != amd
