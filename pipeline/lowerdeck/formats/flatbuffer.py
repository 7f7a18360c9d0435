"""Reads flatbuffers without trusting them.

The generated classes of ExecuTorch and TOSA follow any offset in the file, and importing ExecuTorch's takes four
seconds. This reader checks every offset against the file, so a damaged file raises ValueError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

_FLOATS = ("f", "d")


def root(data: bytes | memoryview, identifier: bytes, what: str) -> Table:
    """The root table.

    Args:
        data: The flatbuffer; bytes may follow it.
        identifier: Its schema's file identifier, expected at bytes 4 to 8.
        what: The expected content, for messages, e.g. `an ExecuTorch program`.

    Raises:
        ValueError: the identifier differs, or the root is outside of `data`.
    """
    found = bytes(data[4:8])
    if found != identifier:
        raise ValueError(f"not {what}: bytes 4 to 8 are {found!r}, not {identifier!r} ({len(data)} bytes in all)")
    return Table(data, unpack(data, "I", 0)[0])


def unpack(data: bytes | memoryview, code: str, position: int, count: int = 1) -> tuple[Any, ...]:
    """`count` little-endian numbers of the struct type `code`.

    Raises:
        ValueError: they are outside of `data`.
    """
    size = struct.calcsize(f"<{code}") * count
    if not 0 <= position <= len(data) - size:
        raise ValueError(f"it refers to {size} bytes at {position} and has {len(data)} bytes")
    return struct.unpack_from(f"<{count}{code}", data, position)


class Table:
    """A flatbuffer table, whose fields are numbered by slot, their position in the schema.

    A union occupies two slots: its type, then its value. Type codes are those of the struct module. Every method raises
    ValueError where an offset points outside of the data.
    """

    __slots__ = ("_data", "_fields", "_position")

    def __init__(self, data: bytes | memoryview, position: int) -> None:
        vtable = position - unpack(data, "i", position)[0]
        size = unpack(data, "H", vtable)[0]
        if size < 4:
            raise ValueError(f"the table at {position} has a vtable of {size} bytes, at least 4 are required")
        self._data = data
        self._position = position
        self._fields: tuple[int, ...] = unpack(data, "H", vtable + 4, (size - 4) // 2)

    def has(self, slot: int) -> bool:
        """Whether the field in `slot` is present."""
        return self._field(slot) is not None

    def scalar(self, slot: int, code: str, default: Any = 0) -> Any:
        """The number in `slot`, `default` where the field is missing; a float where `code` is that of one."""
        position = self._field(slot)
        if position is None:  # writers leave out what equals the schema's default
            return float(default) if code in _FLOATS and default is not None else default
        return unpack(self._data, code, position)[0]

    def table(self, slot: int) -> Table | None:
        """The table in `slot`, None where the field is missing."""
        target = self._target(slot)
        return None if target is None else Table(self._data, target)

    def tables(self, slot: int) -> Iterator[Table]:
        """The vector of tables in `slot`; empty where the field is missing."""
        return (Table(self._data, position) for position in self._positions(slot))

    def numbers(self, slot: int, code: str) -> tuple[Any, ...]:
        """The vector of numbers in `slot`; empty where the field is missing."""
        target = self._target(slot)
        return () if target is None else self._vector(target, code)

    def string(self, slot: int) -> str:
        """The string in `slot`; empty where the field is missing."""
        try:
            return bytes(self.blob(slot)).decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"a string is not UTF-8: {error}") from None

    def strings(self, slot: int) -> Iterator[str]:
        """The vector of strings in `slot`; empty where the field is missing."""
        return (bytes(self._blob_at(position)).decode(errors="replace") for position in self._positions(slot))

    def blob(self, slot: int) -> bytes | memoryview:
        """The vector of bytes in `slot`, of the same type as the data; empty where the field is missing."""
        target = self._target(slot)
        return b"" if target is None else self._blob_at(target)

    def with_strings(self, slot: int, strings: Sequence[str]) -> bytes:
        """A copy of the whole flatbuffer in which the vector of strings in `slot` is another one.

        Raises:
            ValueError: the field is missing.
        """
        position = self._field(slot)
        if position is None:
            raise ValueError(f"the table at {self._position} has no field in slot {slot}")
        content = bytearray(self._data)
        content += bytes(-len(content) % 4)
        start = len(content)
        # References point forward, so the vector comes first, and its strings follow it.
        content += struct.pack("<I", len(strings)) + bytes(4 * len(strings))
        for index, string in enumerate(strings):
            reference, encoded = start + 4 + 4 * index, string.encode()
            struct.pack_into("<I", content, reference, len(content) - reference)
            content += struct.pack("<I", len(encoded)) + encoded + b"\0"
            content += bytes(-len(content) % 4)
        struct.pack_into("<I", content, position, start - position)
        return bytes(content)

    def _blob_at(self, target: int) -> bytes | memoryview:
        length = unpack(self._data, "I", target)[0]
        if length > len(self._data) - target - 4:
            raise ValueError(f"it refers to {length} bytes at {target + 4} and has {len(self._data)} bytes")
        return self._data[target + 4 : target + 4 + length]

    def _positions(self, slot: int) -> Iterator[int]:
        """Where the items of a vector of references are."""
        target = self._target(slot)
        if target is not None:
            for index, offset in enumerate(self._vector(target, "I")):
                yield target + 4 + 4 * index + offset

    def _vector(self, target: int, code: str) -> tuple[Any, ...]:
        return unpack(self._data, code, target + 4, unpack(self._data, "I", target)[0])

    def _field(self, slot: int) -> int | None:
        offset = self._fields[slot] if slot < len(self._fields) else 0
        return self._position + offset if offset else None

    def _target(self, slot: int) -> int | None:
        position = self._field(slot)
        return None if position is None else position + int(unpack(self._data, "I", position)[0])
