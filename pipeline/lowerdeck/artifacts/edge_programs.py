"""The edge program between partition and convert, and whether one from an earlier build can be used again."""

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
    """The edge program between partition and convert, and a receipt for `read_matching_edge_program`.

    Args:
        program: Edge-dialect program before lowering.
        config: What it was made with.
        fingerprint: Digest of what it was made of; empty where it is not known.
        options: Those that decide what the partitioner keeps whole.
        preserved_ops: What it kept.
    """
    from lowerdeck.formats import pt2

    buffer = io.BytesIO()
    pt2.save_edge(program, config, buffer)
    write_bytes(paths.EDGE, buffer.getvalue())
    receipt = {"fingerprint": fingerprint, "options": options, "preserved_ops": preserved_ops}
    # No output of the stage: DVC may put another build's program into its place, which the receipt then does not fit.
    write_json(paths.EDGE_RECEIPT, receipt | {"sha256": hashlib.sha256(buffer.getvalue()).hexdigest()})


def read_edge_program() -> EdgeProgramManager:
    """The edge program that `write_edge_program` wrote."""
    from lowerdeck.formats import pt2

    return pt2.load_edge(require_file(paths.EDGE))


def read_matching_edge_program(
    fingerprint: str, options: Any, preserved_ops: Callable[[], Any]
) -> EdgeProgramManager | None:
    """The edge program of an earlier build, where it was made of the very same and is there unchanged; else None.

    Args:
        fingerprint: As for `write_edge_program`.
        options: Likewise.
        preserved_ops: Called where the options are others than they were: what the partitioner keeps whole now.
    """
    if not paths.EDGE.is_file() or not paths.EDGE_RECEIPT.is_file():
        return None
    receipt = read_json(paths.EDGE_RECEIPT)
    if (receipt.get("fingerprint"), receipt.get("sha256")) != (fingerprint, sha256(paths.EDGE)):
        return None
    if receipt["options"] != options and receipt["preserved_ops"] != list(preserved_ops()):
        return None
    return read_edge_program()
