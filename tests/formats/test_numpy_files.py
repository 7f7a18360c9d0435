"""NumPy's files: what their headers promise is checked before memory is taken for it."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.formats import numpy_files
from lowerdeck.formats.numpy_files import read_npy, read_npz

INTACT: dict[str, npt.NDArray[Any]] = {
    "floats": np.arange(6, dtype=np.float32).reshape(2, 3),
    "scalar": np.asarray(3),
    "empty": np.zeros((0, 4), np.int8),
    "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "swapped": np.arange(3, dtype=">i4"),
}


def header(shape: tuple[int, ...], dtype: str = "<f4") -> bytes:
    """The header of a `.npy` without its array."""
    text = io.BytesIO()
    numpy_format: Any = np.lib.format  # has no annotations
    numpy_format.write_array_header_1_0(text, {"descr": dtype, "fortran_order": False, "shape": shape})
    return text.getvalue()


@pytest.mark.parametrize("compress", [False, True])
def test_intact_files(tmp_path: Path, compress: bool) -> None:
    (np.savez_compressed if compress else np.savez)(tmp_path / "x.npz", **INTACT)
    found = read_npz(tmp_path / "x.npz")
    assert list(found) == list(INTACT)
    for name, array in INTACT.items():
        np.save(tmp_path / "x.npy", array)
        for other in (found[name], read_npy(tmp_path / "x.npy")):
            assert (other.dtype, other.shape) == (array.dtype, array.shape)
            assert np.array_equal(other, array)


def test_a_header_that_promises_a_petabyte(tmp_path: Path) -> None:
    content = header((250_000_000_000_000,)) + b"\0" * 64
    (tmp_path / "x.npy").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("inputs.npy", content)
    for read, name in ((read_npy, "x.npy"), (read_npz, "x.npz")):
        with pytest.raises(
            LowerdeckError, match=rf"{name} cannot be read as .* promises 1,000,000,000,000,000 bytes.* 64"
        ):
            read(tmp_path / name)


def test_an_archive_that_unpacks_to_more_than_the_machine_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros(5_000), b=np.zeros(5_000))
    monkeypatch.setattr(numpy_files, "_memory_bytes", lambda: 70_000)
    with pytest.raises(LowerdeckError, match="its arrays have 80,000 bytes, and this machine has 70,000"):
        read_npz(tmp_path / "x.npz")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK",
        b"\x93NUMPY",
        b"\x93NUMPY\x09\0",
        header((2,)),
        b"\x93NUMPY\x01\0\x04\0((((",
        header((2, -3)) + b"\0" * 64,
    ],
)
def test_damage_is_a_message(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("inputs.npy", content)
    for read, name in ((read_npy, "x.npy"), (read_npz, "x.npz")):
        with pytest.raises(LowerdeckError, match=f"{name} cannot be read as "):
            read(tmp_path / name)


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{}], dtype=object))
    np.savez(tmp_path / "x.npz", a=np.array([{}], dtype=object))
    for read, name in ((read_npy, "x.npy"), (read_npz, "x.npz")):
        with pytest.raises(LowerdeckError, match=r"objects instead of numbers; stack the samples into one array"):
            read(tmp_path / name)
