"""NumPy's files of unknown origin: sizes that their headers promise are checked before memory is taken for them."""

from __future__ import annotations

import math
import os
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.formats.regular_files import check_regular

_FORMAT: Any = np.lib.format  # has no annotations
_HEADERS = {(1, 0): _FORMAT.read_array_header_1_0, (2, 0): _FORMAT.read_array_header_2_0}
"""Reader of the header by version; version 3 is for field names, which tensors lack."""


def read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a `.npz` by name, without unpickling anything.

    Raises:
        LowerdeckError: it is damaged, no `.npz`, or promises more than it contains or this machine can hold.
    """
    check_regular(path)
    try:
        with zipfile.ZipFile(path) as archive:
            promised = 0
            for entry in archive.infolist():
                with archive.open(entry) as file:
                    promised += _promised_bytes(file, entry.file_size, entry.filename)
            if promised > (available := _memory_bytes()):
                raise ValueError(f"its arrays have {promised:,} bytes, and this machine has {available:,}")
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except Exception as error:  # zipfile, zlib and numpy fail on damaged files in ways of their own
        raise LowerdeckError(f"{path} cannot be read as .npz: {_one_line(error)}") from error


def read_npy(path: Path) -> npt.NDArray[Any]:
    """The array in a `.npy`, without unpickling anything.

    Raises:
        LowerdeckError: it is damaged, no `.npy`, or promises more than it contains.
    """
    check_regular(path)
    try:
        with path.open("rb") as file:
            _promised_bytes(file, path.stat().st_size, path.name)
            file.seek(0)
            array: npt.NDArray[Any] = _FORMAT.read_array(file, allow_pickle=False)
            return array
    except Exception as error:  # numpy evaluates the header, and fails on damaged ones in many ways
        raise LowerdeckError(f"{path} cannot be read as .npy: {_one_line(error)}") from error


def _promised_bytes(file: IO[bytes], size: int, name: str) -> int:
    """Size of the array that a header describes; `size` is that of the whole file.

    Raises:
        ValueError: the header is none, or describes more than follows it.
    """
    read_header = _HEADERS.get(_FORMAT.read_magic(file))
    if read_header is None:
        raise ValueError(f"{name} has a header of an unknown version")
    shape, _, dtype = read_header(file)
    if any(size < 0 for size in shape):
        raise ValueError(f"the header of {name} has the shape {list(shape)}")
    if dtype.hasobject:
        raise ValueError(f"{name} has objects instead of numbers; stack the samples into one array: np.stack(samples)")
    promised: int = math.prod(shape) * dtype.itemsize
    left = size - file.tell()
    if promised > left:
        raise ValueError(
            f"the header of {name} promises {promised:,} bytes, {list(shape)} {dtype}, and {left:,} follow"
        )
    return promised


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _one_line(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__
