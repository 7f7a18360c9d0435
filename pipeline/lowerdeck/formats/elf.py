"""Symbols of a 32-bit little-endian ELF file, such as firmware for Cortex-M."""

from __future__ import annotations

from collections.abc import Collection

from lowerdeck.formats.flatbuffer import unpack

_SYMBOL_TABLE = 2
"""sh_type of the section with a file's symbols (System V ABI, chapter 4)."""
_SYMBOL_BYTES = 16


def symbol_addresses(data: bytes, names: Collection[str]) -> dict[str, int]:
    """Addresses of those symbols among `names` that the file has; bit 0, set for functions in Thumb code, is cleared.

    Raises:
        ValueError: it is no such ELF file, or is damaged.
    """
    if data[:6] != b"\x7fELF\x01\x01":
        raise ValueError("it is not a 32-bit little-endian ELF file")
    (sections,), (size, count) = unpack(data, "I", 32), unpack(data, "H", 46, 2)
    wanted = {name.encode(): name for name in names}
    found: dict[str, int] = {}
    for index in range(count):
        header = unpack(data, "I", sections + index * size, 10)
        if header[1] != _SYMBOL_TABLE:
            continue
        text = unpack(data, "I", sections + header[6] * size, 10)[4]
        for place in range(header[4], header[4] + header[5] - _SYMBOL_BYTES + 1, _SYMBOL_BYTES):
            name_offset, address = unpack(data, "I", place, 2)
            name = data[text + name_offset : data.find(b"\0", text + name_offset)]
            if name in wanted:
                found[wanted[name]] = address & ~1
    return found
