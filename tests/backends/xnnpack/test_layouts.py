"""lowerdeck.backends.xnnpack.layouts: layouts of what several operators of a partition read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.contracts.quantization import QuantizationScheme
from tests.marks import quick_first


class Joined(nn.Module):
    """What a function makes of a layer's result, beside that result, in front of another layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.first, self.last = function, nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).relu()
        joined: Tensor = self.last(self.function(y) + y)
        return joined


def _built(function: Callable[[Tensor], Tensor], scheme: str) -> str:
    """What the build reports of a network that it has built right."""
    torch.manual_seed(0)
    drawn = [(torch.randn(1, 3, 18, 18),) for _ in range(12)]
    verdict, detail = lowered(Joined(function).eval(), drawn, create("xnnpack_cpu"), QuantizationScheme(name=scheme))
    assert verdict == "right", detail
    return detail


@pytest.mark.parametrize(
    ("function", "delegated"),
    quick_first(
        [
            pytest.param(lambda y: torch.where(y > 0.2, y, -y), "5 of 7", id="where"),
            pytest.param(F.mish, "7 of 10", id="mish"),
            pytest.param(lambda y: F.prelu(y, torch.linspace(0.1, 0.4, 8)), "10 of 18", id="prelu"),
            pytest.param(F.logsigmoid, "9 of 11", id="logsigmoid"),
            pytest.param(lambda y: F.max_pool2d(torch.exp(y), 3, 1, 1), "6 of 6", id="pooling"),
            pytest.param(F.softplus, "5 of 8", id="softplus"),
        ]
    ),
)
def test_operators_in_float_share_a_quantized_result(function: Callable[[Tensor], Tensor], delegated: str) -> None:
    """They ran on the CPU: "Expected shape (1, 8, 16, 16), but received (1, 16, 8, 16)", or the like."""
    detail = _built(function, "int8")
    assert delegated in detail
    assert "stays on the CPU" not in detail


@pytest.mark.parametrize(
    "function",
    quick_first(
        [
            pytest.param(lambda y: torch.maximum(y, y.flip(3)), id="maximum"),
            pytest.param(lambda y: F.layer_norm(y.permute(0, 2, 3, 1), (8,)).permute(0, 3, 1, 2), id="layer norm"),
            pytest.param(lambda y: y.softmax(-1) * y.amax(1, keepdim=True), id="product"),
            pytest.param(lambda y: F.scaled_dot_product_attention(y, y, y), id="attention"),
        ]
    ),
)
def test_layers_of_dynamic_quantization_read_what_is_computed_before(function: Callable[[Tensor], Tensor]) -> None:
    """All operators between an input of the partition and the layer ran on the CPU, and the layer itself in float."""
    assert "stays on the CPU" not in _built(function, "int8_dynamic")
