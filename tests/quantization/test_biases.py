"""lowerdeck.quantization.biases: what pruning and batch norms leave of a channel is its bias, and it stays."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks.in_turns import create
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.export import export
from lowerdeck.steps.quantize import quantize
from tests.marks import quick_first

TARGETS = ["neutron_imxrt700", "cortex_m55", "ethos_u55_128", "xnnpack_cpu"]


class Pruned(nn.Module):
    """float32 [1 x 4 x 8 x 8] -> [1 x 8]: a channel of either layer has lost its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(4, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 8)
        with torch.no_grad():
            self.norm.bias.fill_(2.0)
            self.norm.weight[3], self.norm.bias[3] = 1e-20, 3.0
            self.head.weight[2], self.head.bias[2] = 0.0, 5.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(torch.relu(self.norm(self.convolution(x))).mean((2, 3)))
        return result


@pytest.mark.parametrize(
    "target", quick_first(["neutron_imxrt700", "cortex_m55", "ethos_u55_128", "xnnpack_cpu"], quick=2)
)
def test_a_channel_without_weights_keeps_its_bias(target: str) -> None:
    """On Neutron and Cortex-M the integers of these biases saturated, which left 15 dB of SQNR."""
    torch.manual_seed(0)
    network, samples = Pruned().eval(), [(torch.rand(1, 4, 8, 8),) for _ in range(8)]
    backend = create(target)
    observing, converting = (backend.quantizer(QuantizationScheme(name="int8")) for _ in range(2))
    assert observing is not None
    assert converting is not None

    def exported() -> torch.export.ExportedProgram:
        return export(network, [[1, 4, 8, 8]], (), backend.memory_format)

    state = calibrate(exported(), observing, samples, len(samples))
    program, _ = quantize(exported(), converting, state)
    expected = network(*samples[0])
    difference = program.module(check_guards=False)(*samples[0]) - expected
    assert 10 * torch.log10(expected.pow(2).mean() / difference.pow(2).mean()) > 40
