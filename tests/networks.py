"""Networks that tests of several steps share; the small one is in conftest.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.passes.operator_support import OperatorSupportBase

from lowerdeck.artifacts.conversion import converter_folder
from lowerdeck.artifacts.edge_programs import read_edge_program, write_edge_program
from lowerdeck.contracts.backends import Backend, DynamicDimension
from lowerdeck.contracts.quantization import ModuleRule, QuantizationScheme
from lowerdeck.quantization.annotation import scheme_quantizer
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.convert import Converted, convert
from lowerdeck.steps.export import export
from lowerdeck.steps.partition import partition
from lowerdeck.steps.quantize import quantize


class Called(nn.Module):
    """A function as a network."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


class Mixed(nn.Module):
    """Pooling with indices, hard swish and a top k, which no backend takes: several partitions with kernels between."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.hardswish(self.first(x)), 2)
        x = torch.topk(x, x.shape[3], dim=3)[0]
        scores: torch.Tensor = F.relu(self.second(x))
        return scores


class Alien(nn.Module):
    """Operators that no backend quantizes or delegates."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.topk(torch.erf(x), x.shape[-1])[0]


class Fragile(nn.Module):
    """Three linear layers of which the second has weights that 8 bits a tensor cannot hold: [1 x 8] -> [1 x 4]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second, self.third = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        with torch.no_grad():
            self.second.weight[0, 0] = 2000.0  # one weight takes the whole range
            self.third.weight[:, 0] = 0.0  # and its output has no say

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))
        return scores


class Schemed(nn.Module):
    """Something for every quantization scheme: convolutions with and without an activation function behind them, and
    linear layers that divide into groups of 32: [1 x 3 x 16 x 16] -> [1 x 10].
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.body = nn.Conv2d(16, 32, 3, padding=1)
        self.hidden = nn.Sequential(nn.Linear(32, 64), nn.ReLU())
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.adaptive_avg_pool2d(self.body(self.stem(x)), 1)
        scores: torch.Tensor = self.head(self.hidden(x.flatten(1)))
        return scores


SCHEMED_SHAPE = [1, 3, 16, 16]


class NoPooling(OperatorSupportBase):
    """A check that keeps pooling off a delegate."""

    def is_node_supported(self, submodules: Mapping[str, nn.Module], node: torch.fx.Node) -> bool:
        return "pool" not in node.name


MIXED_SHAPE = [1, 8, 8, 16]


def quantized_mixed(backend: Backend) -> torch.export.ExportedProgram:
    """Mixed, quantized for `backend`; always the same weights and samples."""
    torch.manual_seed(0)
    return quantized_network(Mixed(), backend, [(torch.randn(MIXED_SHAPE),) for _ in range(4)])


def quantized_network(
    network: nn.Module,
    backend: Backend,
    samples: Sequence[tuple[torch.Tensor, ...]],
    scheme: str = "int8",
    dynamic: Sequence[DynamicDimension] = (),
    rules: tuple[ModuleRule, ...] = (),
) -> torch.export.ExportedProgram:
    """`network` quantized for `backend`, calibrated on all `samples`, of which the first says what its inputs are."""
    chosen = QuantizationScheme(name=scheme, rules=rules)
    observing, converting = scheme_quantizer(backend, chosen), scheme_quantizer(backend, chosen)
    assert observing is not None
    assert converting is not None
    shapes = [list(value.shape) for value in samples[0]]
    dtypes = [str(value.dtype).removeprefix("torch.") for value in samples[0]]
    # Exported twice, because preparing leaves marks on a program.
    exported = [export(network, shapes, dynamic, backend.memory_format, input_dtypes=dtypes) for _ in range(2)]
    state = calibrate(exported[0], observing, samples, len(samples))
    return quantize(exported[1], converting, state)[0]


def lowered_network(
    network: nn.Module, shape: list[int], backend: Backend, folder: Path, *rules: ModuleRule
) -> Converted:
    """`network` quantized for `backend` on two random samples, partitioned and converted, without files between."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(2)
    samples = [(torch.randn(shape, generator=generator),) for _ in range(2)]
    planned = partition(quantized_network(network, backend, samples, rules=rules), backend)
    with chdir(folder):
        write_edge_program(planned.program, planned.edge_config)
        with converter_folder() as workdir:
            return convert(read_edge_program(), planned.plan, backend, workdir)
