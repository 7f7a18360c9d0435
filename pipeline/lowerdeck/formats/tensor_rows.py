"""Safetensors files of tensors [n x ...] that are written row by row, and read without loading them.

safetensors itself takes whole tensors. Its layout: the length of the header in 8 bytes, the header as JSON, then the
tensors one after the other. The files are ordinary ones, which safetensors reads.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from lowerdeck.formats.tensor_header import METADATA, read_header

_NAMES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "uint16": "U16", "int32": "I32", "uint32": "U32",
    "int64": "I64", "uint64": "U64", "float16": "F16", "float32": "F32", "float64": "F64",
}  # fmt: skip
"""NumPy's name of a dtype -> that of the format."""
_DTYPES = {theirs: ours for ours, theirs in _NAMES.items()}


@dataclass(frozen=True, kw_only=True)
class RowSpec:
    """A tensor of a file."""

    shape: tuple[int, ...]
    """[n x ...]."""
    dtype: str
    """NumPy's name."""


def create(path: Path, tensors: Mapping[str, RowSpec], metadata: Mapping[str, str]) -> dict[str, npt.NDArray[Any]]:
    """Write a file of zeros, and open its tensors for writing: what is assigned to them goes to the file.

    Args:
        path: A new file.
        tensors: The tensors by name.
        metadata: Stored in the header.

    Raises:
        OSError: the file exists, or the disk is full.
    """
    header: dict[str, Any] = {METADATA: dict(metadata)}
    end = 0
    for name, spec in tensors.items():
        start, end = end, end + math.prod(spec.shape) * np.dtype(spec.dtype).itemsize
        header[name] = {"dtype": _NAMES[spec.dtype], "shape": list(spec.shape), "data_offsets": [start, end]}
    encoded = json.dumps(header, sort_keys=True).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("x+b") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        file.flush()
        reserve(file, 8 + len(encoded) + end)
    return _mapped(path, header, 8 + len(encoded), mode="r+")


def reserve(file: IO[bytes], size: int) -> None:
    """Extend a file that will be mapped to `size` bytes on disk: where it has a hole, a full disk ends the process.

    Raises:
        OSError: the disk is full.
    """
    try:
        os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        file.truncate(size)  # a file system that reserves nothing


def open_rows(path: Path) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
    """The tensors in a file that `create` made, read from disk where they are used, and its metadata.

    Raises:
        ValueError, KeyError, TypeError: the file is damaged.
    """
    with path.open("rb") as file:
        header, begin = read_header(file)
    return _mapped(path, header, begin, mode="r"), dict(header[METADATA])


def _mapped(path: Path, header: Mapping[str, Any], begin: int, mode: Any) -> dict[str, npt.NDArray[Any]]:
    tensors: dict[str, npt.NDArray[Any]] = {}
    for name, entry in header.items():
        if name == METADATA:
            continue
        shape, dtype = tuple(entry["shape"]), np.dtype(_DTYPES[entry["dtype"]])
        if not math.prod(shape):
            tensors[name] = np.zeros(shape, dtype)  # nothing can be mapped
            continue
        tensors[name] = np.memmap(path, dtype, mode, offset=begin + entry["data_offsets"][0], shape=shape)
    return tensors
