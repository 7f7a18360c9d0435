"""Counts the transposes of a compiled partition in its host twin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lowerdeck.contracts.lowering import CompiledPartition
from lowerdeck.formats.flatbuffer import root

_TOSA_TRANSPOSE = 61
"""Op.TRANSPOSE in tosa.fbs."""
_LITERT_TRANSPOSE = 39
"""BuiltinOperator.TRANSPOSE in LiteRT's schema.fbs."""


def with_transposes(partition: CompiledPartition) -> CompiledPartition:
    """Return `partition` with its number of transposes: the backend's count, or those in its host twin.

    The twin is the compiler's input, after the backend's passes; it does not show how the compiler implements the
    transposes on the device.

    Raises:
        ValueError: the twin is damaged.
    """
    if partition.transposes is not None or partition.twin is None or partition.twin_format not in _COUNTS:
        return partition
    return replace(partition, transposes=_COUNTS[partition.twin_format](partition.twin))


def _in_tosa(graph: bytes) -> int:
    regions = root(graph, b"TOSA", "a TOSA graph").tables(1)
    operators = (operator for region in regions for block in region.tables(1) for operator in block.tables(1))
    return sum(operator.scalar(0, "I") == _TOSA_TRANSPOSE for operator in operators)


def _in_litert(graph: bytes) -> int:
    model = root(graph, b"TFL3", "a LiteRT flatbuffer")
    # The schema has two fields: the older one is a byte, 127 for later operators; a transpose is in both.
    codes = [max(code.scalar(0, "b"), code.scalar(3, "i")) for code in model.tables(1)]
    operators = (operator for subgraph in model.tables(2) for operator in subgraph.tables(3))
    return sum(codes[operator.scalar(0, "I")] == _LITERT_TRANSPOSE for operator in operators)


_COUNTS: dict[str, Callable[[bytes], int]] = {"tosa": _in_tosa, "litert": _in_litert}
