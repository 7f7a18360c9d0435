"""Files written row by row are ordinary safetensors."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from lowerdeck.formats.tensor_rows import RowSpec, create, open_rows


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float16", "float32", "float64"])
def test_rows_are_read_back_by_anyone(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "rows.safetensors"
    tensors = create(
        path, {"b": RowSpec(shape=(3, 2), dtype=dtype), "a": RowSpec(shape=(3,), dtype="int64")}, {"k": "v"}
    )
    expected = np.array([[0, 1], [1, 0], [1, 1]], dtype=dtype)
    for row in range(3):
        tensors["b"][row], tensors["a"][row] = expected[row], row
    del tensors
    assert np.array_equal(load_file(path)["b"], expected)
    read, metadata = open_rows(path)
    assert (read["a"].tolist(), metadata) == ([0, 1, 2], {"k": "v"})
    assert read["b"].dtype == expected.dtype
    with pytest.raises(ValueError, match="read-only"):
        read["b"][0] = 0


def test_tensors_without_elements_and_files_that_exist(tmp_path: Path) -> None:
    path = tmp_path / "rows.safetensors"
    create(path, {"empty": RowSpec(shape=(3, 0), dtype="float32")}, {})
    assert open_rows(path)[0]["empty"].shape == (3, 0)
    with pytest.raises(FileExistsError):
        create(path, {}, {})


def test_the_disk_has_room_for_all_rows_before_the_first(tmp_path: Path) -> None:
    """The file was a hole: on a full disk, writing into it ended baseline by SIGBUS, without a message."""
    path = tmp_path / "rows.safetensors"
    create(path, {"a": RowSpec(shape=(1000, 100), dtype="float32")}, {})
    assert path.stat().st_blocks * 512 >= path.stat().st_size > 400_000


@pytest.mark.parametrize(("code", "is_full"), [(errno.EOPNOTSUPP, False), (errno.EINVAL, False), (errno.ENOSPC, True)])
def test_file_systems_that_reserve_nothing_and_full_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, is_full: bool
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("os.posix_fallocate", refuse)
    path, specs = tmp_path / "rows.safetensors", {"a": RowSpec(shape=(3,), dtype="int64")}
    if is_full:
        with pytest.raises(OSError, match="No space left"):
            create(path, specs, {})
    else:
        create(path, specs, {})["a"][:] = [1, 2, 3]
        assert open_rows(path)[0]["a"].tolist() == [1, 2, 3]
