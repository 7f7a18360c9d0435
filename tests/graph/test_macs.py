"""lowerdeck.graph.macs against torch.utils.flop_counter, which counts a multiplication and an addition as two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lowerdeck.graph.macs import macs
from lowerdeck.steps.export import export
from lowerdeck.steps.partition import partition
from tests.conftest import Lowered

aten = torch.ops.aten
X2D, X1D, X3D = torch.randn(2, 8, 9, 7), torch.randn(2, 8, 11), torch.randn(1, 4, 5, 6, 7)


@contextmanager
def counting() -> Iterator[FlopCounterMode]:
    """Attention in its parts: the kernel for CPUs is not counted."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counted:
        yield counted


def shapes(arguments: tuple[Any, ...]) -> list[Any]:
    return [tuple(value.shape) if isinstance(value, torch.Tensor) else value for value in arguments]


def convolution(x: torch.Tensor, weight: list[int], stride: int, groups: int, transposed: bool = False) -> Any:
    dims = x.ndim - 2
    return (x, torch.randn(weight), None, [stride] * dims, [1] * dims, [1] * dims, transposed, [0] * dims, groups)


CALLS = {
    "plain": (aten.convolution.default, convolution(X2D, [6, 8, 3, 3], 1, 1)),
    "strided": (aten.convolution.default, convolution(X2D, [6, 8, 3, 3], 2, 1)),
    "grouped": (aten.convolution.default, convolution(X2D, [6, 4, 3, 3], 1, 2)),
    "depthwise": (aten.convolution.default, convolution(X2D, [16, 1, 3, 3], 1, 8)),
    "one dimension": (aten.convolution.default, convolution(X1D, [6, 8, 3], 1, 1)),
    "three dimensions": (aten.convolution.default, convolution(X3D, [6, 4, 3, 3, 3], 2, 1)),
    "transposed": (aten.convolution.default, convolution(X2D, [8, 6, 3, 3], 2, 1, transposed=True)),
    "transposed and grouped": (aten.convolution.default, convolution(X2D, [8, 3, 3, 3], 2, 2, transposed=True)),
    "mm": (aten.mm.default, (torch.randn(3, 5), torch.randn(5, 7))),
    "addmm": (aten.addmm.default, (torch.randn(7), torch.randn(3, 5), torch.randn(5, 7))),
    "bmm": (aten.bmm.default, (torch.randn(4, 3, 5), torch.randn(4, 5, 7))),
    "baddbmm": (aten.baddbmm.default, (torch.randn(4, 3, 7), torch.randn(4, 3, 5), torch.randn(4, 5, 7))),
    "linear": (aten.linear.default, (torch.randn(2, 3, 5), torch.randn(7, 5), torch.randn(7))),
    "matmul": (aten.matmul.default, (torch.randn(2, 4, 3, 5), torch.randn(2, 4, 5, 7))),
    "attention": (
        aten.scaled_dot_product_attention.default,
        (torch.randn(2, 4, 6, 8), torch.randn(2, 4, 9, 8), torch.randn(2, 4, 9, 8)),
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_operator_counts_half_of_the_flops(call: str) -> None:
    operator, arguments = CALLS[call]
    with counting() as counted:
        output = operator(*arguments)
    assert counted.get_total_flops() > 0
    assert 2 * macs(str(operator), shapes(arguments), tuple(output.shape)) == counted.get_total_flops()


def test_a_matrix_with_a_vector() -> None:
    """The flop counter has nothing for these."""
    assert macs("aten.mv.default", [(3, 5), (5,)], (3,)) == 15
    assert macs("aten.addmv.default", [(3,), (3, 5), (5,)], (3,)) == 15
    assert macs("aten.dot.default", [(5,), (5,)], ()) == 5


def test_what_works_element_by_element_counts_nothing() -> None:
    assert macs("aten.add.Tensor", [(1, 8), (1, 8)], (1, 8)) == 0
    assert macs("aten.avg_pool2d.default", [(1, 8, 4, 4), [2, 2]], (1, 8, 2, 2)) == 0


class Everything(nn.Module):
    """Convolutions of all kinds, an attention and a linear layer: [1 x 8 x 8 x 8] -> [1 x 5]."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Conv2d(8, 16, 3, padding=1)
        self.depthwise = nn.Conv2d(16, 16, 3, groups=16)
        self.upwards = nn.ConvTranspose2d(16, 8, 2, stride=2, groups=2)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.upwards(self.depthwise(F.relu(self.plain(x))))
        tokens = x.flatten(2).transpose(1, 2)
        tokens, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        scores: torch.Tensor = self.head(tokens.mean(1))
        return scores


def test_a_whole_network_counts_half_of_the_flops(lowered: Callable[[str], Lowered]) -> None:
    build = lowered("xnnpack_cpu")
    network = Everything().eval()
    plan = partition(export(network, [[1, 8, 8, 8]]), build.backend()).plan
    with counting() as counted:
        network.train()(torch.randn(1, 8, 8, 8))  # in eval mode the layer is one operator that nobody counts
    assert 2 * sum(node.macs for node in plan.nodes) == counted.get_total_flops()
    by_module = {node.module: node.macs for node in plan.nodes if "convolution" in node.operator}
    assert by_module == {"plain": 8 * 8 * 16 * 8 * 9, "depthwise": 6 * 6 * 16 * 9, "upwards": 6 * 6 * 16 * 4 * 4}
