"""The real case: ResNet-8 with its trained weights on the evaluation digits, delegated against quantized."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from lowerdeck import datasets
from lowerdeck.models.networks.resnet8 import ResNet8
from tests.runtime.lowering import lower

WEIGHTS, DIGITS = Path("data/checkpoints/resnet8_digits.safetensors"), Path("data/prepared/digits")


@pytest.mark.slow
@pytest.mark.skipif(not DIGITS.is_dir(), reason="no digits: `dvc repro data/dvc.yaml` prepares them")
@pytest.mark.parametrize(("target", "limit_s"), [("neutron", 10), ("ethos_u", 60)])
def test_delegated_agrees_with_quantized(tmp_path: Path, target: str, limit_s: float) -> None:
    from safetensors.torch import load_file

    source = datasets.source("digits")
    digits = source.load(source.Options(root=str(DIGITS), mean=[0.0], std=[1.0]), [[1, 3, 32, 32]], 0)
    model = ResNet8(10)
    model.load_state_dict(load_file(WEIGHTS))
    build = lower(model, [digits.calibration[index].inputs for index in range(64)], target, tmp_path / "build_folder")
    program = build.open()
    samples = [digits.evaluation[index].inputs for index in range(len(digits.evaluation))]
    start = time.perf_counter()
    delegated = torch.cat([program(*sample)[0] for sample in samples])
    duration_s = time.perf_counter() - start
    with torch.no_grad():
        quantized = torch.cat([build.quantized(*sample) for sample in samples])
    values = torch.unique(quantized.flatten())
    errors = ((delegated - quantized) / (values[1:] - values[:-1]).min()).round().abs()
    assert (errors <= 1).float().mean() >= 0.99
    assert (delegated.argmax(1) == quantized.argmax(1)).float().mean() >= 0.995
    assert duration_s <= limit_s
