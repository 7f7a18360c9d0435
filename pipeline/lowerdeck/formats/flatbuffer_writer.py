"""Writes flatbuffers without generated classes; equal arguments give equal bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal


def table(builder: Any, offsets: Mapping[int, int | None], scalars: Callable[[], object] = lambda: None) -> int:
    """Write a table.

    Args:
        builder: flatbuffers.Builder.
        offsets: Slot -> offset of a table, vector or string; None to omit it.
        scalars: Writes the other fields.

    Returns:
        The table's offset.
    """
    builder.StartObject(9)  # more slots than any table written here; unused ones at the end cost nothing
    for slot, offset in offsets.items():
        if offset is not None:
            builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
    scalars()
    return int(builder.EndObject())


def tables(builder: Any, offsets: Sequence[int]) -> int:
    """Write a vector of tables that were written before, and return its offset."""
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):  # flatbuffers are written from their end
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())


def numbers(builder: Any, values: Sequence[float], number: Literal["Int32", "Int64", "Float32"]) -> int:
    """Write a vector of numbers of this type, and return its offset."""
    size = int(number[-2:]) // 8
    prepend = getattr(builder, f"Prepend{number}")
    builder.StartVector(size, len(values), size)
    for value in reversed(values):
        prepend(value)
    return int(builder.EndVector())
