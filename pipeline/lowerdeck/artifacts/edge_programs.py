"""The edge program between partition and convert, and whether that of an earlier build can be reused."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import as_archive, read_json, require_file, sha256, write_bytes, write_json

if TYPE_CHECKING:
    from executorch.exir import EdgeCompileConfig, EdgeProgramManager
    from torch.export import ExportedProgram


def write_edge_program(
    program: ExportedProgram,
    config: EdgeCompileConfig,
    fingerprint: str = "",
    preserved: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Write the edge program, and a receipt for `read_matching_edge_program`.

    Args:
        program: Edge-dialect program before lowering.
        config: Configuration it was built with.
        fingerprint: Digest of its inputs; empty if unknown.
        preserved: What else decides whether it can be reused: the operators that the partitioner preserved.
    """
    from lowerdeck.formats import pt2

    buffer = io.BytesIO()
    pt2.save_edge(program, config, buffer)
    write_bytes(paths.EDGE, buffer.getvalue())
    receipt = {"fingerprint": fingerprint, "preserved": dict(preserved)}
    # Not an output of the stage: DVC may restore another build's program, which this receipt then does not match.
    write_json(paths.EDGE_RECEIPT, receipt | {"sha256": hashlib.sha256(buffer.getvalue()).hexdigest()})


def read_edge_program() -> EdgeProgramManager:
    """The edge program that `write_edge_program` wrote."""
    from lowerdeck.formats import pt2

    with as_archive(require_file(paths.EDGE)):
        return pt2.load_edge(paths.EDGE)


def read_matching_edge_program(
    fingerprint: str, preserves_alike: Callable[[Mapping[str, Any]], bool]
) -> EdgeProgramManager | None:
    """The edge program of an earlier build if its inputs were the same and the file is unchanged, else None.

    Args:
        fingerprint: See `write_edge_program`.
        preserves_alike: Called with `preserved` of that program, if only what the partitioner preserves may differ.
    """
    if not paths.EDGE.is_file() or not paths.EDGE_RECEIPT.is_file():
        return None
    receipt = read_json(paths.EDGE_RECEIPT)
    if (receipt.get("fingerprint"), receipt.get("sha256")) != (fingerprint, sha256(paths.EDGE)):
        return None
    return read_edge_program() if preserves_alike(receipt["preserved"]) else None
