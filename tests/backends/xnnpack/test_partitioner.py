"""lowerdeck.backends.xnnpack.partitioner: operators that XNNPACK's compiler refuses are decomposed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.contracts.quantization import QuantizationScheme
from tests.marks import quick_first


class Between(nn.Module):
    """A PReLU between two linear layers."""

    def __init__(self, shape: list[int]) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(shape[-1], 8), nn.PReLU(shape[1] if len(shape) > 2 else 8), nn.Linear(8, 4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layers(x)
        return result


@pytest.mark.parametrize("shape", [[4, 8], [1, 8, 12], [1, 8, 6, 5]], ids=["rows", "signal", "image"])
def test_prelu_of_any_rank_is_lowered(shape: list[int]) -> None:
    torch.manual_seed(0)
    drawn = [(1.5 * torch.randn(shape),) for _ in range(12)]
    verdict, detail = lowered(Between(shape).eval(), drawn, create("xnnpack_cpu"))
    assert verdict == "right", detail
    assert "stays on the CPU" not in detail


class OfMean(nn.Module):
    """A layer times the mean of its results, which has no dimensions: float32 [1 x 3 x 12 x 12]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        return torch.relu(x) * x.mean()


@pytest.mark.parametrize("target", ["xnnpack_cpu", "neutron_imxrt700"])
def test_a_tensor_without_dimensions_is_quantized(target: str) -> None:
    torch.manual_seed(0)
    drawn = [(torch.randn(1, 3, 12, 12),) for _ in range(12)]
    verdict, detail = lowered(OfMean().eval(), drawn, create(target))
    assert verdict == "right", detail
    assert detail.startswith("3 of 4 operators")
    assert "stays on the CPU" not in detail


class Stateful(nn.Module):
    """Products whose second operand is state, which a call before this one has written."""

    def __init__(self, function: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function, self.matrix = function, nn.Parameter(torch.randn(6, 6) * 0.3)
        self.state = nn.Buffer(torch.eye(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.function(x, self.matrix, self.state)
        self.state.copy_(self.state * 0.9 + 0.01)
        return result


@pytest.mark.parametrize("scheme", quick_first(["int8", "float32"]))
@pytest.mark.parametrize(
    "function",
    [
        lambda x, matrix, state: x @ (matrix @ state),
        lambda x, matrix, state: torch.relu(x @ state.T) + 1,
        lambda x, matrix, state: F.linear(x, matrix, state[0]) @ matrix,
    ],
)
def test_products_with_state_stay_on_the_cpu(
    function: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor], scheme: str
) -> None:
    """XNNPACK took the state's initial value as a constant, and the process ended by SIGSEGV, or convert failed."""
    torch.manual_seed(0)
    drawn = [(torch.randn(1, 6),) for _ in range(12)]
    network = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), Stateful(function)).eval()
    verdict, detail = lowered(network, drawn, create("xnnpack_cpu"), QuantizationScheme(name=scheme))
    assert verdict == "right", detail


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["int8", "float32"])
def test_slopes_that_are_state_are_decomposed(scheme: str) -> None:
    """XNNPACK took the first ones for constants, and the process ended by SIGSEGV."""

    class Slopes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.slopes = nn.Conv2d(3, 8, 3, padding=1), nn.Buffer(torch.rand(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result = F.prelu(self.layer(x), self.slopes)
            self.slopes.copy_(self.slopes * 0.9)
            return result

    torch.manual_seed(0)
    drawn = [(torch.randn(1, 3, 8, 8),) for _ in range(6)]
    verdict, detail = lowered(Slopes().eval(), drawn, create("xnnpack_cpu"), QuantizationScheme(name=scheme))
    assert verdict == "right", detail
