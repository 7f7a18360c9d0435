"""Symbols of firmware, in a file made by hand."""

from __future__ import annotations

import struct

import pytest

from lowerdeck.formats.elf import symbol_addresses


def elf() -> bytes:
    """Two sections: a symbol table with `main` in Thumb code at 0x1000 and `data` at 0x2000, and its strings."""
    strings = b"\0main\0data\0"
    symbols = bytes(16) + struct.pack("<IIIBBH", 1, 0x1001, 4, 2, 0, 1) + struct.pack("<IIIBBH", 6, 0x2000, 4, 1, 0, 1)
    header = b"\x7fELF\x01\x01" + bytes(26)
    sections = 52 + len(strings) + len(symbols)
    header += struct.pack("<I", sections) + bytes(10) + struct.pack("<HHH", 40, 2, 0)
    table = struct.pack("<10I", 0, 2, 0, 0, 52 + len(strings), len(symbols), 1, 0, 4, 16)
    return header + strings + symbols + table + struct.pack("<10I", 0, 3, 0, 0, 52, len(strings), 0, 0, 1, 0)


def test_addresses_without_the_bit_of_thumb_code() -> None:
    assert symbol_addresses(elf(), ["main", "data", "other"]) == {"main": 0x1000, "data": 0x2000}


@pytest.mark.parametrize("size", [0, 4, 40, 60, 100, 150])
def test_a_file_that_was_cut(size: int) -> None:
    with pytest.raises(ValueError, match=r"not a 32-bit little-endian ELF file|it refers to"):
        symbol_addresses(elf()[:size], ["main"])
