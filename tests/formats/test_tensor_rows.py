"""Files written row by row are ordinary safetensors."""

from __future__ import annotations

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
