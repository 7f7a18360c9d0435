"""Networks over sequences, on targets that compute images alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.steps.export import export
from tests.marks import quick_first

SHAPE = [1, 4, 16]


class Sequences(nn.Module):
    """A function of a sequence between two convolutions, the first with a batch norm."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor], channels: int = 8) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv1d(4, 8, 3, padding=1), nn.BatchNorm1d(8)
        self.function, self.last = function, nn.Conv1d(channels, 4, 3, padding="same")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.function(torch.relu(self.norm(self.first(x)))))
        return result


class Residual(nn.Module):
    """A temporal convolutional network: dilated, causal, with skips of several kinds, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(4, 4, 3, dilation=2**index) for index in range(3))
        self.deep, self.up = nn.Conv1d(4, 4, 3, groups=4, stride=2), nn.ConvTranspose1d(4, 4, 4, stride=2)
        self.scale, self.classes = nn.Parameter(torch.rand(4, 1)), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for index, layer in enumerate(self.layers):
            x = x + torch.relu(layer(F.pad(x, (2 * 2**index, 0)))) * self.scale
        y = self.up(self.deep(x))
        return self.classes(y.mean(-1)), y.transpose(1, 2)


def operators_of(model: nn.Module) -> list[str]:
    """Of the program for a target that wants channels-last, whose outputs are those of the model."""
    model = model.eval()
    program, x = export(model, [SHAPE], memory_format="channels_last", sequences_as_images=True), torch.randn(SHAPE)
    torch.testing.assert_close(program.module(check_guards=False)(x), model(x))
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.max_pool1d(x, 3, 2, 1),
        lambda x: F.max_pool1d(x, 2, ceil_mode=True),
        lambda x: F.avg_pool1d(x, 3, 1, 1, count_include_pad=False),
        lambda x: F.adaptive_avg_pool1d(x, 4),
        lambda x: F.interpolate(x, scale_factor=2),
        lambda x: F.interpolate(x, scale_factor=2, mode="linear"),
        lambda x: F.interpolate(x, 9, mode="linear", align_corners=True),
        lambda x: F.dropout(x, 0.5, training=False).sigmoid(),
        lambda x: torch.cat([x[:, :4], x[:, -4:].tanh()], 1) * 2,
        lambda x: torch.cat([x, x[..., ::2]], -1),
        lambda x: x * x.mean(-1, keepdim=True).sigmoid() + x.amax(2, True),
        lambda x: F.pad(x[..., 1:], (1, 0)).clamp(0.1, 2),
        lambda x: x + torch.linspace(0, 1, 8)[:, None] - torch.linspace(0, 1, 16),
        lambda x: torch.where(x > 0.5, x, x * torch.ones(1, 8, 1)),
        lambda x: F.hardswish(F.relu6(x, inplace=True).contiguous()),
        lambda x: F.prelu(x, torch.linspace(0, 1, 8)).double().float(),
    ],
)
def test_what_has_a_form_for_images_needs_no_sequence(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    found = operators_of(Sequences(function))
    assert found.count("aten.conv2d.default") + found.count("aten.conv2d.padding") == 2
    assert found.count("aten.squeeze.dim") == 1
    assert [each for each in found if "contiguous" in each or "clone" in each] == [
        *("aten.clone.default", "aten.contiguous.default")  # one at either end
    ]


@pytest.mark.parametrize(
    ("function", "channels"),
    [
        (lambda x: F.glu(x, 1), 4),
        (lambda x: x.chunk(2, 1)[0].tanh() * x.chunk(2, 1)[1].sigmoid(), 4),
        (lambda x: torch.cat(x.split([2, 6], 1)[::-1], 1), 8),
    ],
)
def test_parts_of_images_are_images(function: Callable[[torch.Tensor], torch.Tensor], channels: int) -> None:
    assert operators_of(Sequences(function, channels)).count("aten.squeeze.dim") == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.transpose(1, 2).softmax(-1).transpose(1, 2),
        lambda x: F.pad(x, (1, 1), mode="reflect"),
        lambda x: F.layer_norm(x, (16,)),
        lambda x: x.reshape(1, 8, 4, 4).mean(3),
        lambda x: x - x.mean(1, keepdim=True),
        lambda x: F.pad(x, (0, 0, 1, 1))[:, :8],
        lambda x: x.flip(2),
        lambda x: torch.stack([x, x]).sum(0),
    ],
)
def test_what_has_none_gets_a_sequence(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert operators_of(Sequences(function)).count("aten.squeeze.dim") == 2


def test_a_network_of_images_alone_stays() -> None:
    program = export(nn.Conv2d(3, 4, 3).eval(), [[1, 3, 8, 8]], memory_format="channels_last", sequences_as_images=True)
    assert [node.target for node in program.graph.nodes if node.op == "call_function"] == [
        torch.ops.aten.conv2d.default
    ]


@pytest.mark.parametrize("network", quick_first([Residual, lambda: Sequences(lambda x: F.max_pool1d(x, 2))]))
def test_networks_of_sequences_are_right_on_cortex_m(network: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    verdict, detail = lowered(network().eval(), [(torch.randn(SHAPE),) for _ in range(8)], create("cortex_m55"))
    assert verdict == "right", detail


def test_poolings_of_sequences_are_delegated_to_ethos_u() -> None:
    """Arm's quantizer has no pattern of them, so each was two conversions and a float kernel on the CPU."""
    torch.manual_seed(0)
    network, drawn = Sequences(lambda x: F.max_pool1d(x, 2)).eval(), [(torch.randn(SHAPE),) for _ in range(8)]
    verdict, detail = lowered(network, drawn, create("ethos_u55_128"))
    assert verdict == "right", detail
    delegated, count = detail.partition(" operators")[0].split(" of ")
    assert delegated == count
