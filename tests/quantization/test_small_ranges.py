"""lowerdeck.quantization.small_ranges: tensors of small numbers keep their resolution."""

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

TARGETS = ["neutron_imxrt700", "xnnpack_cpu", "ethos_u55_128", "cortex_m55"]


class Electrodes(nn.Module):
    """float32 [1 x 1 x 4 x 32], in volts -> [1 x 2], as EEGNet: a convolution and a batch norm that scales up."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(1, 8, (1, 5), bias=False), nn.BatchNorm2d(8, eps=1e-15)
        self.norm.get_buffer("running_var").fill_(1e-10)
        self.spatial, self.head = nn.Conv2d(8, 8, (4, 1), groups=8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.spatial(self.norm(self.convolution(x))))
        scores: torch.Tensor = self.head(y.mean((2, 3)))
        return scores


class Sound(nn.Module):
    """float32 [1 x 16], integers of 16 bits -> [1 x 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(x / 32768)
        return scores


CASES = [
    (network, shape, spread, target)
    for network, shape, spread in ((Electrodes, [1, 1, 4, 32], 2e-5), (Sound, [1, 16], 1e4))
    for target in TARGETS
]


@pytest.mark.parametrize(("network", "shape", "spread", "target"), quick_first(CASES, quick=4))
def test_small_numbers_keep_their_resolution(
    network: type[nn.Module], shape: list[int], spread: float, target: str
) -> None:
    """Outputs vary as those of the float model do; the mean does not count."""
    torch.manual_seed(0)
    model, samples = network().eval(), [(spread * torch.randn(shape),) for _ in range(16)]
    backend = create(target)
    observing, converting = (backend.quantizer(QuantizationScheme(name="int8")) for _ in range(2))
    assert observing is not None
    assert converting is not None

    def exported() -> torch.export.ExportedProgram:
        return export(model, [shape], (), backend.memory_format)

    program, _ = quantize(exported(), converting, calibrate(exported(), observing, samples, len(samples)))
    with torch.no_grad():
        expected = torch.cat([model(*sample) for sample in samples])
        actual = torch.cat([program.module(check_guards=False)(*sample) for sample in samples])
    varying, error = expected - expected.mean(0), actual - expected
    assert 10 * torch.log10(varying.square().sum() / error.square().sum()) > 15


def test_a_tensor_of_zeros_keeps_the_backends_step() -> None:
    """No step is that fine: a layer with such inputs could not have a bias of 32 bits."""
    first, samples = nn.Linear(4, 4), [(torch.rand(1, 4),)] * 2
    with torch.no_grad():
        first.bias.fill_(-10)
    network = nn.Sequential(first, nn.ReLU(), nn.Linear(4, 2)).eval()
    backend = create("neutron_imxrt700")
    quantizer = backend.quantizer(QuantizationScheme(name="int8"))
    assert quantizer is not None
    state = calibrate(export(network, [[1, 4]]), quantizer, samples, len(samples))
    assert 2.0**-12 in [float(value) for name, value in state.tensors.items() if name.endswith(".eps")]


def test_sixteen_bits_keep_the_step_of_arms_tables() -> None:
    """A softmax has a range of 1, which is wide enough: with finer steps its table is tens of them off."""
    network, samples = nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1)).eval(), [(torch.randn(1, 4),) for _ in range(4)]
    quantizer = create("ethos_u85_256").quantizer(QuantizationScheme(name="int16x8"))
    assert quantizer is not None
    state = calibrate(export(network, [[1, 4]]), quantizer, samples, len(samples))
    assert {float(value) for name, value in state.tensors.items() if name.endswith(".eps")} <= {2.0**-12, 2.0**-16}
