"""lowerdeck.formats.flatbuffer_writer: the project's own reader, which checks every offset, reads what it wrote."""

from __future__ import annotations

from functools import partial

import flatbuffers

from lowerdeck.formats.flatbuffer import root
from lowerdeck.formats.flatbuffer_writer import numbers, table, tables


def written() -> bytes:
    builder = flatbuffers.Builder(64)
    inner = [table(builder, {}, partial(builder.PrependInt8Slot, 0, value, 0)) for value in (3, -4)]
    fields = {0: tables(builder, inner), 2: None, 5: numbers(builder, [1.5, -2.0], "Float32")}
    builder.Finish(table(builder, fields, lambda: builder.PrependInt32Slot(7, 11, 0)), file_identifier=b"TEST")
    return bytes(builder.Output())


def test_what_is_written_is_read() -> None:
    found = root(written(), b"TEST", "a test")
    assert [each.scalar(0, "b") for each in found.tables(0)] == [3, -4]
    assert found.numbers(5, "f") == (1.5, -2.0)
    assert found.scalar(7, "i") == 11
    assert list(found.tables(2)) == []


def test_equal_arguments_give_equal_bytes() -> None:
    assert written() == written()
