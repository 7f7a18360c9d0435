"""Lines of text that a board and this host exchange: `LD VERB NAME=VALUE ... *CRC`, docs/line_protocol.md.

devices/sources/line_protocol.c is the board's side, in the application of the firmware bundle as in any other firmware.
"""

from __future__ import annotations

import re
from binascii import crc_hqx
from collections.abc import Mapping
from dataclasses import dataclass

VERSION = 2
_LINE = re.compile(r"LD (.+) \*([0-9a-f]{4})")
_DAMAGED = "damaged"


@dataclass(frozen=True)
class Line:
    """One line of the protocol."""

    verb: str
    """`damaged` where the line has another CRC than it states."""
    fields: Mapping[str, str]
    """Values by name."""
    version: int | None = None
    """The number behind the verb, which `hello` has."""

    @property
    def is_damaged(self) -> bool:
        """Whether characters of it were lost or changed."""
        return self.verb == _DAMAGED

    def number(self, name: str) -> int | None:
        """The number of a field; None where there is none."""
        value = self.fields.get(name, "")
        return int(value) if value.isascii() and value.isdigit() else None

    def content(self, name: str) -> bytes | None:
        """The bytes of a field of hexadecimal digits; None where there are none."""
        try:
            return bytes.fromhex(self.fields[name])
        except (KeyError, ValueError):
            return None


def written(verb: str, **fields: object) -> str:
    """The line without its end.

    Args:
        verb: E.g. `run`.
        fields: Values, which contain no space.
    """
    body = " ".join([verb, *(f"{name}={value}" for name, value in fields.items())])
    return f"LD {body} *{crc16(body):04x}"


def read(text: str) -> Line | None:
    """The line without its end; None where it is not of the protocol."""
    if not text.startswith("LD "):
        return None
    found = _LINE.fullmatch(text)
    if found is None or crc16(found[1]) != int(found[2], 16):
        return Line(_DAMAGED, {})
    verb, *words = found[1].split(" ")
    numbers = [int(word) for word in words if word.isdigit()]
    fields = dict(word.split("=", 1) for word in words if "=" in word)
    return Line(verb, fields, numbers[0] if numbers else None)


def crc16(text: str) -> int:
    """CRC-16/CCITT-FALSE: polynomial 0x1021, begins with 0xFFFF."""
    return crc_hqx(text.encode("ascii", "replace"), 0xFFFF)
