"""lowerdeck.artifacts.check_inputs: inputs are kept however a dataset lays them out in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lowerdeck.artifacts.check_inputs import read_check_inputs, write_check_inputs

SERIES = torch.arange(32.0)
MASK = torch.ones(1, 8)


@pytest.mark.parametrize(
    "samples",
    [
        [(SERIES[start : start + 8][None],) for start in (0, 4, 8)],
        [(SERIES[start : start + 8][None], MASK) for start in (0, 8)],
        [(MASK, MASK)],
        [(SERIES.view(4, 8).t(),)],
        [(MASK.expand(3, 8),)],
    ],
    ids=["windows that overlap", "one mask for all", "the same twice", "transposed", "expanded"],
)
def test_inputs_that_share_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, samples: list[tuple[torch.Tensor, ...]]
) -> None:
    """calibrate ended by an error of safetensors after all samples."""
    monkeypatch.chdir(tmp_path)
    write_check_inputs(samples)
    for read, written in zip(read_check_inputs(), samples, strict=True):
        for one, other in zip(read, written, strict=True):
            assert one.equal(other)
