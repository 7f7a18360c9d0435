"""Headers of safetensors files are read as safetensors reads them, without NumPy or PyTorch."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import save

from lowerdeck.formats.tensor_header import METADATA, read_header
from tests.project import SOURCES


def test_tensors_and_texts_are_described() -> None:
    content = save({"a": np.zeros((2, 3), np.float32)}, {"k": "v"})
    header, begin = read_header(io.BytesIO(content))
    assert header == {METADATA: {"k": "v"}, "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
    assert len(content) == begin + 24


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Expecting value"),
        (b"\xff" * 16, "would have 18446744073709551615 bytes"),
        ((2).to_bytes(8, "little") + b"[]", "no mapping"),
        ((200_000).to_bytes(8, "little") + b"[" * 200_000, "nested|Expecting"),
        ((2).to_bytes(8, "little") + b"\xff\xff", "utf"),
    ],
)
def test_a_damaged_header_is_an_error(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_header(io.BytesIO(content))


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys, lowerdeck.formats.tensor_header; assert not {'numpy', 'torch', 'safetensors'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": SOURCES}, check=True)
