"""The table of operators in docs/neutron.md is what the installed backend does."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from pipeline.contracts import PlannedNode
from pipeline.partition import partition
from tests.backends.neutron.steps import neutron, quantized
from tests.project import REPOSITORY

PAGE = Path(REPOSITORY / "docs" / "neutron.md")
_TABLE_ROW = re.compile(r"^\| `(?P<operator>[^`]+)` \| (?P<text>[^|]*) \| (?P<found>[^|]*) \|$", re.MULTILINE)
CHANNELS, HEIGHT, WIDTH = 8, 8, 16


class Row(nn.Module):
    """One operator behind convolutions or a linear layer of its own, which quantize its inputs."""

    def __init__(self, function: Callable[[Row, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.one = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.other = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.narrow = nn.Conv2d(CHANNELS, 6, 3, padding=1)
        self.few = nn.Conv2d(CHANNELS, 3, (8, 14))  # [1 x 3 x 1 x 3]: nine elements
        self.grouped = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=2)
        self.depthwise = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=CHANNELS)
        self.transposed = nn.ConvTranspose2d(CHANNELS, CHANNELS, 2, stride=2)
        self.one_dimensional = nn.Conv1d(CHANNELS, CHANNELS, 3)
        self.normalization = nn.BatchNorm2d(CHANNELS)
        self.slopes = nn.PReLU(CHANNELS)
        self.linear = nn.Linear(WIDTH, CHANNELS)
        self.linear_without_bias = nn.Linear(WIDTH, CHANNELS, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, x)


ROWS: dict[str, Callable[[Row, torch.Tensor], torch.Tensor]] = {
    "abs": lambda m, x: m.one(x).abs(),
    "adaptive_avg_pool2d": lambda m, x: functional.adaptive_avg_pool2d(m.one(x), (4, 8)),
    "linear, 2D": lambda m, x: m.linear(x.flatten(0, 2)),
    "linear, 2D, without bias": lambda m, x: m.linear_without_bias(x.flatten(0, 2)),
    "linear, 4D": lambda m, x: m.linear(x),
    "add": lambda m, x: m.one(x) + m.other(x),
    "add, alpha=2": lambda m, x: torch.add(m.one(x), m.other(x), alpha=2),
    "add, inputs of other rank": lambda m, x: m.one(x) + m.other(x).mean(1),
    "avg_pool2d": lambda m, x: functional.avg_pool2d(m.one(x), 2, 2),
    "avg_pool2d, ceil_mode": lambda m, x: functional.avg_pool2d(m.one(x), 3, 2, ceil_mode=True),
    "avg_pool2d, padding, count_include_pad": lambda m, x: functional.avg_pool2d(m.one(x), 2, 2, 1),
    "avg_pool2d, divisor_override": lambda m, x: functional.avg_pool2d(m.one(x), 2, 2, divisor_override=3),
    "cat": lambda m, x: torch.cat([m.one(x), m.other(x)], 1),
    "cat, 6 and 8 channels": lambda m, x: torch.cat([m.narrow(x), m.one(x)], 1),
    "clone": lambda m, x: m.one(x).clone(),
    "pad, height and width": lambda m, x: functional.pad(m.one(x), (1, 1, 1, 1)),
    "pad, channels": lambda m, x: functional.pad(m.one(x), (0, 0, 0, 0, 1, 1)),
    "conv2d": lambda m, x: m.one(x),
    "conv2d, depthwise": lambda m, x: m.depthwise(x),
    "conv_transpose2d": lambda m, x: m.transposed(x),
    "dropout": lambda m, x: functional.dropout(m.one(x), training=False),
    "flatten": lambda m, x: m.one(x).flatten(1),
    "hardtanh, 0 to 6": lambda m, x: functional.hardtanh(m.one(x), 0.0, 6.0),
    "hardtanh, -2 to 2": lambda m, x: functional.hardtanh(m.one(x), -2.0, 2.0),
    "hardtanh_": lambda m, x: functional.hardtanh_(m.one(x)),
    "max_pool2d": lambda m, x: functional.max_pool2d(m.one(x), 2),
    "max_pool2d, dilation=2": lambda m, x: functional.max_pool2d(m.one(x), 2, dilation=2),
    "max_pool2d, ceil_mode": lambda m, x: functional.max_pool2d(m.one(x), 3, 2, ceil_mode=True),
    "mean, dims -1 and -2": lambda m, x: m.one(x).mean((-1, -2)),
    "mean, dim 1": lambda m, x: m.one(x).mean(1),
    "mul": lambda m, x: m.one(x) * m.other(x),
    "mul, nine elements": lambda m, x: m.few(x) * m.few(x),
    "permute": lambda m, x: m.one(x).permute(0, 2, 3, 1),
    "relu": lambda m, x: functional.relu(m.one(x)),
    "relu_": lambda m, x: functional.relu_(m.one(x)),
    "reshape": lambda m, x: m.one(x).reshape(1, 8, -1),
    "view": lambda m, x: m.one(x).view(1, 8, 16, 8),
    "softmax": lambda m, x: functional.softmax(m.one(x), 1),
    "tanh": lambda m, x: torch.tanh(m.one(x)),
    "tanh_": lambda m, x: torch.tanh_(m.one(x)),
    "sigmoid": lambda m, x: torch.sigmoid(m.one(x)),
    "slice": lambda m, x: m.one(x)[:, :, 2:6],
    "hardswish": lambda m, x: functional.hardswish(m.one(x)),
    "leaky_relu": lambda m, x: functional.leaky_relu(m.one(x)),
    "prelu": lambda m, x: m.slopes(m.one(x)),
    "sub": lambda m, x: m.one(x) - m.other(x),
    "maximum": lambda m, x: torch.maximum(m.one(x), m.other(x)),
    "exp": lambda m, x: torch.exp(m.one(x)),
    "upsample, bilinear": lambda m, x: functional.interpolate(m.one(x), scale_factor=2.0, mode="bilinear"),
    "upsample, nearest": lambda m, x: functional.interpolate(m.one(x), scale_factor=2.0),
    "batch_norm behind conv2d": lambda m, x: m.normalization(m.one(x)),
    "erf": lambda m, x: torch.erf(m.one(x)),
}

ALONE: dict[str, Callable[[Row, torch.Tensor], torch.Tensor]] = {
    "conv1d": lambda m, x: m.one_dimensional(x.flatten(2)),
    "conv2d, two groups": lambda m, x: m.grouped(x),
}
"""Rows of which NXP's passes make nodes that do not know their module: each is a program of its own."""


class Operators(nn.Module):
    """All rows on one input, so that one lowering tells of all."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.ModuleList(Row(function) for function in ROWS.values())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(row(x) for row in self.rows)


@pytest.fixture(scope="module")
def measured() -> dict[str, str]:
    """Row -> `delegated`, or what stays on the CPU."""
    torch.manual_seed(0)
    nodes = planned(Operators())
    together = {
        label: outcome([node for node in nodes if f"{node.module}.".startswith(f"rows.{index}.")])
        for index, label in enumerate(ROWS)
    }
    return together | {label: outcome(planned(Row(function))) for label, function in ALONE.items()}


def planned(network: nn.Module) -> Sequence[PlannedNode]:
    return partition(quantized(network.eval(), [1, CHANNELS, HEIGHT, WIDTH]), neutron()).plan.nodes


def outcome(nodes: Sequence[PlannedNode]) -> str:
    compute = [node for node in nodes if node.compute]
    assert compute
    left = dict.fromkeys(node.operator.rpartition(".")[0] for node in compute if node.partition is None)
    return f"{', '.join(left)} on the CPU" if left else "delegated"


@pytest.mark.slow
def test_the_table_is_what_the_backend_does(measured: dict[str, str]) -> None:
    table = PAGE.read_text(encoding="utf-8").partition("## Operators")[2]
    documented = {match["operator"]: match["found"].strip() for match in _TABLE_ROW.finditer(table)}
    assert documented == measured
