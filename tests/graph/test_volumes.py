"""Networks over volumes, such as videos, whose convolutions no kernel of ExecuTorch and hardly a backend has."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.contracts.backends import MemoryFormat
from lowerdeck.steps.export import export
from tests.conftest import TARGETS
from tests.marks import quick_first

SHAPE = [1, 3, 4, 8, 6]


class Volumes(nn.Module):
    """A function of a volume [1 x 8 x 4 x 8 x 6] between two convolutions, the first with a batch norm."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv3d(3, 8, 3, padding=1, bias=False), nn.BatchNorm3d(8)
        self.function, self.last = function, nn.Conv3d(8, 4, (2, 1, 3), padding="same")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.function(torch.relu(self.norm(self.first(x)))))
        return result


class Classifier(nn.Module):
    """As X3D and R(2+1)D: depthwise and factorized convolutions, excitation, a skip, and a mean over everything."""

    def __init__(self) -> None:
        super().__init__()
        self.images, self.depths = nn.Conv3d(3, 8, (1, 3, 3), (1, 2, 2), (0, 1, 1)), nn.Conv3d(8, 8, (3, 1, 1), 1, 0)
        self.depthwise, self.norm = nn.Conv3d(8, 8, 3, padding=1, groups=8), nn.BatchNorm3d(8)
        self.excitation, self.classes = nn.Conv3d(8, 8, 1), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.depths(self.images(x)))
        y = self.norm(self.depthwise(x))
        y = F.hardswish(y * torch.sigmoid(self.excitation(F.adaptive_avg_pool3d(y, 1))))
        scores: torch.Tensor = self.classes((x + y).mean((2, 3, 4)))
        return scores


class UNet(nn.Module):
    """Two resolutions: max pooling, a dilated convolution of two groups, a transposed convolution, a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv3d(3, 4, 3, padding=1), nn.Conv3d(4, 8, 3, padding=2, dilation=2, groups=2)
        self.up, self.head = nn.ConvTranspose3d(8, 4, 2, stride=2), nn.Conv3d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.leaky_relu(self.down(x))
        y = self.up(torch.relu(self.deep(F.max_pool3d(x, 2))))
        return torch.softmax(self.head(torch.cat([x, y], 1)), 1)


NETWORKS = {"volumes": lambda: Volumes(lambda x: F.avg_pool3d(x, 2)), "classifier": Classifier, "unet": UNet}


def operators_of(model: nn.Module, shape: list[int], memory_format: MemoryFormat = "contiguous") -> list[str]:
    """Of the program, whose outputs are those of the model."""
    model, x = model.eval(), torch.randn(shape)
    program = export(model, [shape], memory_format=memory_format)
    torch.testing.assert_close(program.module(check_guards=False)(x), model(x))
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


OVER_DEPTH: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: F.max_pool3d(x, (3, 2, 1), (1, 2, 1), (1, 0, 0)),
    lambda x: F.max_pool3d(x, 2, ceil_mode=True, dilation=(2, 1, 1)),
    lambda x: F.avg_pool3d(x, (2, 3, 3), 1, (0, 1, 1), count_include_pad=False),
    lambda x: F.adaptive_avg_pool3d(x, (2, 4, 3)),
    lambda x: F.interpolate(x, scale_factor=(2, 1, 2)),
    lambda x: F.interpolate(x, scale_factor=(2.3, 1.4, 1.7)),
    lambda x: x * F.adaptive_avg_pool3d(x, 1).sigmoid(),
]
"""What takes depths for the rows of an image, and back."""
WITHIN_IMAGES: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: F.max_pool3d(x, (1, 2, 2)),
    lambda x: F.interpolate(x, (4, 16, 12)),
    lambda x: F.dropout(x, 0.5, training=False).sigmoid(),
    lambda x: torch.cat([x[:, :4], x[:, -4:].tanh()], 1) * 2,
    lambda x: torch.cat([x, x[:, :, ::2]], -3)[..., 1:, :3],
    lambda x: torch.cat(torch.split(x, [2, 6], 1)[::-1], 1) + torch.cat(x.chunk(2, 2)[::-1], 2),
    lambda x: F.pad(x, (1, 0, 0, 1, 1, 1), value=0.5).clamp(0.1, 2),
    lambda x: F.pad(x, (1, 2)),
    lambda x: F.prelu(x, torch.linspace(0, 1, 8)).softmax(1),
]
WITH_TENSORS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x + torch.linspace(0, 1, 8)[:, None, None, None] - torch.linspace(0, 1, 6),
    lambda x: torch.where(x > 0.5, x, x * torch.linspace(0, 1, 32).view(1, 8, 4, 1, 1) * torch.ones(4, 8, 6)),
]
"""What is broadcast changes places, too."""


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@pytest.mark.parametrize(
    ("function", "exchanges"),
    [
        *((each, 4) for each in OVER_DEPTH),
        *((each, 2) for each in WITHIN_IMAGES),
        *((each, 3) for each in WITH_TENSORS),
    ],
)
def test_what_has_a_form_for_images_computes_the_same(
    function: Callable[[torch.Tensor], torch.Tensor], exchanges: int, memory_format: MemoryFormat
) -> None:
    torch.manual_seed(0)
    found = operators_of(Volumes(function), SHAPE, memory_format)
    assert found.count("aten.conv2d.default") == 2
    assert not [each for each in found if "3d" in each]
    assert found.count("aten.permute.default") == exchanges


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.layer_norm(x, (6,)),
        lambda x: x.transpose(3, 4),
        lambda x: x.softmax(2),
        lambda x: x - x.mean(1, keepdim=True),
        lambda x: torch.cat([x, x + 1], 0)[1:],
        lambda x: torch.cat([x, x + 1], 0)[:1].relu(),
        lambda x: F.pad(x, (1, 1, 1, 1, 1, 1), mode="replicate"),
    ],
)
def test_what_has_none_gets_a_volume(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    found = operators_of(Volumes(function), SHAPE)
    assert found.count("aten.conv2d.default") == 2


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_compute_the_same(name: str) -> None:
    found = operators_of(NETWORKS[name](), SHAPE)
    assert not [each for each in found if "3d" in each]


@pytest.mark.parametrize(
    "network",
    [
        nn.ConvTranspose3d(3, 4, 3, stride=2),
        nn.ConvTranspose3d(3, 3, 2, stride=2, groups=3),
        nn.Sequential(nn.Conv3d(3, 4, 2), nn.AvgPool3d(2, divisor_override=3)),
        nn.Sequential(nn.Conv3d(3, 4, 1), nn.AdaptiveAvgPool3d((3, 3, 3))),
        nn.Sequential(nn.Conv3d(3, 4, 1), nn.Upsample(scale_factor=(1.2, 1.4, 1))),
    ],
)
def test_what_cannot_be_rewritten_stays(network: nn.Module) -> None:
    assert [each for each in operators_of(network, SHAPE) if "3d" in each]


@pytest.mark.parametrize("shape", [[2, *SHAPE[1:]], SHAPE[1:]], ids=["batch", "no_batch"])
def test_batches_of_volumes_stay(shape: list[int]) -> None:
    assert operators_of(nn.Conv3d(3, 4, 2).eval(), shape) == ["aten.conv3d.default"]


def test_zeros_around_a_volume_have_its_dtype() -> None:
    network, x = nn.Conv3d(3, 4, 3, padding=1).eval().to(torch.bfloat16), torch.randn(SHAPE, dtype=torch.bfloat16)
    program = export(network, [SHAPE], input_dtypes=["bfloat16"])
    torch.testing.assert_close(program.module(check_guards=False)(x), network(x))


@pytest.mark.parametrize("target", quick_first(TARGETS))
@pytest.mark.parametrize("name", quick_first(list(NETWORKS)))
def test_networks_of_volumes_are_right(name: str, target: str) -> None:
    torch.manual_seed(0)
    drawn = [(torch.randn(SHAPE),) for _ in range(8)]
    verdict, detail = lowered(NETWORKS[name]().eval(), drawn, create(target))
    assert verdict == "right", detail
    assert "not compiled" not in detail
    assert "computes something else" not in detail
    delegated, count = map(int, detail.partition(" operators")[0].split(" of "))
    assert target.startswith("cortex_m") or delegated >= 0.75 * count, detail
