"""Networks that tests of several steps share; the small one is in conftest.py."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from pipeline.calibrate import calibrate
from pipeline.contracts import Backend, QuantizationScheme
from pipeline.export import export
from pipeline.quantize import quantize


class Mixed(nn.Module):
    """Pooling with indices, hard swish and a sort, which no backend takes: several partitions with kernels between."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.hardswish(self.first(x)), 2)
        x = torch.sort(x, dim=3)[0]
        scores: torch.Tensor = F.relu(self.second(x))
        return scores


class Alien(nn.Module):
    """Operators that no backend quantizes or delegates."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sort(torch.erf(x), dim=-1)[0]


MIXED_SHAPE = [1, 8, 8, 16]


def quantized_mixed(backend: Backend) -> torch.export.ExportedProgram:
    """Mixed, quantized for `backend`; always the same weights and samples."""
    torch.manual_seed(0)
    network = Mixed()
    samples = [(torch.randn(MIXED_SHAPE),) for _ in range(4)]
    scheme = QuantizationScheme(name="int8")
    observing, converting = backend.quantizer(scheme), backend.quantizer(scheme)
    assert observing is not None
    assert converting is not None
    # Exported twice, because preparing leaves marks on a program.
    state = calibrate(export(network, [MIXED_SHAPE]), observing, samples, len(samples))
    return quantize(export(network, [MIXED_SHAPE]), converting, state)[0]
