"""Makes ExecuTorch's Arm backend report the origin of every TOSA operator.

Its compile spec can request this with an output folder, but the compile spec and the folder become part of the `.pte`.
Here only the spec of the conversion to TOSA is changed, which is not stored.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executorch.backends.arm.common.arm_compile_spec import ArmCompileSpec

from lowerdeck.compat import arm
from lowerdeck.graph.source_lines import relative_stack_trace

if TYPE_CHECKING:
    import torch
    from executorch.backends.arm.debug.schema import TorchDebugSchema
    from executorch.backends.arm.tosa.compile_spec import TosaCompileSpec
    from torch.export import ExportedProgram

_REPORT = "debug.json"


@contextmanager
def debug_info(mode: str | None, folder: Path) -> Iterator[None]:
    """Collect debug information from conversions to TOSA.

    Args:
        mode: `JSON` for a report in `folder`, `TOSA` for information inside the TOSA graph, None for neither.
        folder: The backend's output folder; emptied for every conversion.
    """
    if mode is None:
        yield
        return
    # Graphs are identified by their addresses in memory; -1, the parent of the first, stays.
    numbered = {-1: -1}
    original, described = arm.TOSA_PREPROCESS.original(), arm.DEBUG_SCHEMA_OF_NODE.original()

    def preprocess(program: ExportedProgram, compile_spec: TosaCompileSpec) -> Any:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        compile_spec.dump_intermediate_artifacts_to(str(folder)).dump_debug_info(ArmCompileSpec.DebugMode[mode])
        return original(program, compile_spec)

    def from_node(node: torch.fx.Node) -> TorchDebugSchema:
        schema: TorchDebugSchema = described(node)
        schema.stack_trace = relative_stack_trace("\n".join(schema.stack_trace)).split("\n")
        if not isinstance(schema.node_trace, str):  # a text says that there is none
            for step in schema.node_trace:
                for key in ("graph_id", "parent_graph_id"):
                    step[key] = numbered.setdefault(step[key], len(numbered) - 1)
        return schema

    with arm.TOSA_PREPROCESS.active(preprocess), arm.DEBUG_SCHEMA_OF_NODE.active(from_node):
        yield


def debug_reports(folder: Path) -> dict[str, bytes]:
    """Return the report of the last conversion by file name; empty where there is none."""
    report = folder / _REPORT
    return {_REPORT: report.read_bytes()} if report.is_file() else {}
