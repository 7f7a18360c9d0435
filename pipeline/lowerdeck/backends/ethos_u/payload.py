"""Reads what ExecuTorch's Arm backend packs around Vela's output (executorch/backends/arm/arm_vela.py)."""

from __future__ import annotations

import struct

_HEADER = struct.Struct("<16sIB11s")
"""Name, length in bytes, whether the block stands elsewhere, reserved."""
_ALIGNMENT_BYTES = 16
_SCRATCH_SIZE, _END = b"scratch_size", b"vela_end_stream"


def scratch_bytes(payload: bytes) -> int | None:
    """Working memory that the NPU needs for inputs, outputs and what lies between, all at once.

    None where the payload does not say it itself, but names a block of a data file.

    Raises:
        ValueError: the payload has no such block.
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
    raise ValueError("Vela's payload names no size of its scratch memory")
