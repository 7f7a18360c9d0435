"""The edge program between partition and convert, and whether that of an earlier build can be reused."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import read_json, require_file, sha256, write_bytes, write_json

if TYPE_CHECKING:
    from executorch.exir import EdgeCompileConfig, EdgeProgramManager
    from torch.export import ExportedProgram


def write_edge_program(
    program: ExportedProgram,
    config: EdgeCompileConfig,
    fingerprint: str = "",
    options: Any = None,
    preserved_ops: Any = None,
) -> None:
    """Write the edge program, and a receipt for `read_matching_edge_program`.

    Args:
        program: Edge-dialect program before lowering.
        config: Configuration it was built with.
        fingerprint: Digest of its inputs; empty if unknown.
        options: Options that decide which operators the partitioner preserves.
        preserved_ops: Operators that it preserved.
    """
    from lowerdeck.formats import pt2

    buffer = io.BytesIO()
    pt2.save_edge(program, config, buffer)
    write_bytes(paths.EDGE, buffer.getvalue())
    receipt = {"fingerprint": fingerprint, "options": options, "preserved_ops": preserved_ops}
    # Not an output of the stage: DVC may restore another build's program, which this receipt then does not match.
    write_json(paths.EDGE_RECEIPT, receipt | {"sha256": hashlib.sha256(buffer.getvalue()).hexdigest()})


def read_edge_program() -> EdgeProgramManager:
    """The edge program that `write_edge_program` wrote."""
    from lowerdeck.formats import pt2

    return pt2.load_edge(require_file(paths.EDGE))


def read_matching_edge_program(
    fingerprint: str, options: Any, preserved_ops: Callable[[], Any]
) -> EdgeProgramManager | None:
    """The edge program of an earlier build if its inputs were the same and the file is unchanged, else None.

    Args:
        fingerprint: See `write_edge_program`.
        options: See `write_edge_program`.
        preserved_ops: Called if `options` have changed; returns the operators that the partitioner preserves now.
    """
    if not paths.EDGE.is_file() or not paths.EDGE_RECEIPT.is_file():
        return None
    receipt = read_json(paths.EDGE_RECEIPT)
    if (receipt.get("fingerprint"), receipt.get("sha256")) != (fingerprint, sha256(paths.EDGE)):
        return None
    if receipt["options"] != options and receipt["preserved_ops"] != list(preserved_ops()):
        return None
    return read_edge_program()
