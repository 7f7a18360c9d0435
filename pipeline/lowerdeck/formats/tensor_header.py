"""The header of safetensors files, without the tensors and what they would be loaded by.

The length of the header in 8 bytes, little-endian, then the header as JSON: https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
from typing import IO, Any

MAX_BYTES = 100_000_000
"""Longest header that safetensors reads."""
METADATA = "__metadata__"
"""Key of the texts by name that the header has beside its tensors."""


def read_header(file: IO[bytes]) -> tuple[dict[str, Any], int]:
    """The header of a file that was just opened, and where the tensors begin.

    Raises:
        ValueError: it is none, or is too long.
    """
    size = int.from_bytes(file.read(8), "little")
    if size > MAX_BYTES:
        raise ValueError(f"its header would have {size} bytes")
    try:
        header = json.loads(file.read(size))
    except RecursionError as error:
        raise ValueError("its header is nested too deeply") from error
    if not isinstance(header, dict):
        raise ValueError("its header is no mapping")
    return header, 8 + size
