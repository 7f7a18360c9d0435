"""Reads the container of Vela's output in a payload (executorch/backends/arm/arm_vela.py)."""

from __future__ import annotations

import struct

_HEADER = struct.Struct("<16sIB11s")
"""Name, length in bytes, whether the block is in another file, reserved."""
_ALIGNMENT_BYTES = 16
_SCRATCH_SIZE, _END = b"scratch_size", b"vela_end_stream"


def scratch_bytes(payload: bytes) -> int | None:
    """Return the size of the NPU's working memory for inputs, outputs and intermediate tensors together.

    None where the payload refers to a block of a data file instead.

    Raises:
        ValueError: the payload has no block with this size.
    """
    position = 0
    while position + _HEADER.size <= len(payload):
        name, length, is_elsewhere, _ = _HEADER.unpack_from(payload, position)
        position += _HEADER.size
        if name.rstrip(b"\0") == _SCRATCH_SIZE:
            return None if is_elsewhere else int.from_bytes(payload[position : position + 4], "little")
        if name.rstrip(b"\0") == _END:
            break
        position += length + -length % _ALIGNMENT_BYTES
    raise ValueError("Vela's payload does not contain the size of its scratch memory")
