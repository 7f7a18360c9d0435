"""CMSIS-NN's own kernels, in Arm's firmware, compute what this host computes, where a model is channels-last."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from lowerdeck import devices
from lowerdeck.devices import emulated_cortex_m55 as device
from lowerdeck.steps.measure import measure
from lowerdeck.steps.measurement import Place, Settings
from tests.devices.programs import needs_emulator
from tests.networks import Called
from tests.runtime.lowering import lower

SHAPE = (1, 3, 4, 6)


@needs_emulator
@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: torch.softmax(x, -1), id="softmax"),
        pytest.param(lambda x: x.permute(0, 1, 3, 2), id="transposition"),
        pytest.param(nn.Linear(6, 5), id="linear"),
        pytest.param(lambda x: torch.maximum(x, torch.softmax(x, -1)), id="maximum"),
        pytest.param(lambda x: torch.minimum(x, torch.linspace(-1, 1, 12).reshape(3, 4, 1)), id="rows repeated"),
        pytest.param(lambda x: torch.minimum(x, torch.linspace(-1, 1, 6)), id="columns repeated"),
        pytest.param(lambda x: x * torch.softmax(x, -1), id="product"),
    ],
)
def test_the_firmware_agrees_with_the_host(function: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path) -> None:
    torch.manual_seed(0)
    samples = [(torch.randn(SHAPE).to(memory_format=torch.channels_last),) for _ in range(4)]
    build = lower(Called(function).eval(), samples, "cortex_m", tmp_path / "build")
    host = build.open()
    place = Place(name="m55", module=devices.source("emulated_cortex_m55"), options=device.Options())
    found = measure(build.program, samples[:2], place, Settings(timeout_s=120))
    assert found.failure is None
    for outputs, sample in zip(found.outputs, samples, strict=False):
        assert torch.equal(outputs[0], host(*sample)[0])
