"""Programs that a test has just converted, opened for execution."""

from __future__ import annotations

from lowerdeck.formats.pte import read_pte
from lowerdeck.runtime.native import NativeEngine
from lowerdeck.runtime.program import HostProgram
from lowerdeck.steps.convert import Converted


def open_natively(converted: Converted) -> HostProgram:
    """The program in ExecuTorch's runtime, without the trial run in another process that files of others get."""
    methods = read_pte(converted.program)
    return HostProgram(methods, NativeEngine(converted.program, methods, probe=False))
