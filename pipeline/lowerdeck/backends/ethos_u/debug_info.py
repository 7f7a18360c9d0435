"""Has ExecuTorch's Arm backend write down where every TOSA operator comes from.

Its compile spec can say so too, together with a folder to write to. But a compile spec stands in the `.pte`, and with
it the folder: here the spec of the conversion to TOSA alone is changed, which is not kept.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executorch.backends.arm.common.arm_compile_spec import ArmCompileSpec
from executorch.backends.arm.debug.schema import TorchDebugSchema
from executorch.backends.arm.tosa.backend import TOSABackend

if TYPE_CHECKING:
    import torch
    from executorch.backends.arm.tosa.compile_spec import TosaCompileSpec
    from torch.export import ExportedProgram

_REPORT = "debug.json"
_ABOVE_PACKAGES = re.compile(r'(?<=")/[^"]*/(?:site|dist)-packages/')
"""What of a stack trace's paths differs between machines."""


@contextmanager
def debug_info(mode: str | None, folder: Path) -> Iterator[None]:
    """While open, conversions to TOSA keep debug information.

    Args:
        mode: `JSON` for a report in `folder`, `TOSA` for information inside the TOSA graph, None for neither.
        folder: Where the backend writes; emptied for every conversion.
    """
    if mode is None:
        yield
        return
    original = TOSABackend._preprocess

    def preprocess(program: ExportedProgram, compile_spec: TosaCompileSpec) -> Any:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        compile_spec.dump_intermediate_artifacts_to(str(folder)).dump_debug_info(ArmCompileSpec.DebugMode[mode])
        return original(program, compile_spec)

    def from_node(node: torch.fx.Node) -> TorchDebugSchema:
        schema = described(node)
        schema.stack_trace = [_ABOVE_PACKAGES.sub("", line) for line in schema.stack_trace]
        return schema

    described = TorchDebugSchema.from_node
    TOSABackend._preprocess = staticmethod(preprocess)
    TorchDebugSchema.from_node = staticmethod(from_node)
    try:
        yield
    finally:
        TOSABackend._preprocess = staticmethod(original)
        TorchDebugSchema.from_node = staticmethod(described)


def debug_reports(folder: Path) -> dict[str, bytes]:
    """The report of the last conversion by file name, empty where none was asked for."""
    report = folder / _REPORT
    return {_REPORT: report.read_bytes()} if report.is_file() else {}
