"""Values as C literals."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np


def c_string(text: str) -> str:
    """A C string literal of the text in UTF-8; three octal digits end an escape, whatever follows."""
    safe = "".join(
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}" for byte in text.encode()
    )
    return f'"{safe}"'


def c_float(value: float) -> str:
    """The float32 nearest to `value` as a C literal."""
    text = np.format_float_scientific(np.float32(value), unique=True)
    return f"{re.sub(r'[.]e', '.0e', text)}f"


def definitions(constants: Iterable[tuple[str, str]]) -> list[str]:
    """Lines that define macros, given their names and their values in C."""
    return [f"#define {name} {value}" for name, value in constants]
