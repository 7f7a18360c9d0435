"""The microcode of the reference flavor: a LiteRT model behind a short header.

Real Neutron microcode is for the NPU only. This microcode contains the partition's LiteRT model, so that a host can
execute the partition from the `.pte` alone; it cannot run on an NPU.

Layout, little-endian, 64 bytes of header so that the model after it stays aligned to 16 bytes:

    offset  size  content
         0     8  magic, b"LDNEUREF"
         8     4  format version, unsigned
        12     4  zero
        16     8  length of the LiteRT model in bytes, unsigned
        24    32  SHA-256 of the LiteRT model
        56     8  zero
        64     n  the LiteRT model
"""

import hashlib
import struct

MAGIC = b"LDNEUREF"
FORMAT_VERSION = 1
_HEADER = struct.Struct("<8sI4xQ32s8x")


def pack_microcode(model: bytes) -> bytes:
    """Return microcode of the reference flavor with `model` (a LiteRT flatbuffer)."""
    return _HEADER.pack(MAGIC, FORMAT_VERSION, len(model), hashlib.sha256(model).digest()) + model


def unpack_microcode(data: bytes) -> bytes:
    """Return the LiteRT model in microcode of the reference flavor.

    Args:
        data: the microcode; more bytes may follow it, because a delegate payload does not say where its microcode
            ends and its weights begin.

    Raises:
        ValueError: the bytes are not reference microcode of this version, or were truncated or altered.
    """
    if len(data) < _HEADER.size:
        raise ValueError(f"reference microcode starts with a header of {_HEADER.size} bytes, got {len(data)} bytes")
    magic, version, length, digest = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise ValueError(
            f"not microcode of the reference flavor: it starts with {magic!r}, not {MAGIC!r}. Microcode of NXP's "
            "converter runs on the NPU only; lower the model with the reference flavor to execute it on the host."
        )
    if version != FORMAT_VERSION:
        raise ValueError(
            f"reference microcode has format version {version}, this code reads version {FORMAT_VERSION}. "
            "Convert the model again."
        )
    model = bytes(data[_HEADER.size : _HEADER.size + length])
    if len(model) != length:
        raise ValueError(f"reference microcode was cut: {length} bytes of LiteRT model announced, {len(model)} present")
    if hashlib.sha256(model).digest() != digest:
        raise ValueError(
            "reference microcode was altered: the SHA-256 of its LiteRT model is not the one in its header"
        )
    return model
