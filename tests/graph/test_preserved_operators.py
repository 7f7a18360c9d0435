"""Operators that only delegates have become others where they stay on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.contracts.plan import Reason, ReasonCode
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.graph.preserved_operators import decompose_faulty
from lowerdeck.steps.export import export
from lowerdeck.steps.partition import partition
from tests.marks import quick_first
from tests.networks import Called

_Function = Callable[[torch.Tensor], torch.Tensor]


class BetweenWideLayers(nn.Module):
    """What comes behind the first layer has a range of which Arm's table of 16 bits keeps too few steps."""

    def __init__(self, function: _Function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.function = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3), function
        self.first.weight.data *= 30

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        between: torch.Tensor = self.function(self.first(x))
        result: torch.Tensor = self.last(between)
        return result


@pytest.mark.parametrize("function", quick_first([F.hardswish, F.hardsigmoid, F.silu]))
def test_an_activation_that_the_npu_computes_wrongly_runs_on_the_cpu(function: _Function) -> None:
    network = BetweenWideLayers(function).eval()
    samples = [(torch.randn(1, 3, 16, 16),) for _ in range(8)]
    scheme = QuantizationScheme(name="int16x8")
    verdict, detail = lowered(network, samples, create("ethos_u85_256"), scheme)
    assert (verdict, f"stays on the CPU: aten_{function.__name__}" in detail) == ("right", True), detail


def test_a_decomposed_pooling_has_the_same_result_and_the_reason() -> None:
    network, x = Called(lambda y: F.max_pool2d(y, 3, 2, 1)).eval(), torch.randn(1, 3, 8, 8)
    made = partition(export(network, [[1, 3, 8, 8]]), create("xnnpack_cpu"))
    expected = made.program.module()(x)
    reason = Reason(code=ReasonCode.WRONG_RESULT, message="it is off")
    faulty = decompose_faulty(made.program, {"aten_max_pool2d_default": reason})
    assert [*faulty.values()] == [reason] * len(faulty)
    assert "aten_max_pool2d_default" not in faulty
    assert "aten.max_pool2d.default" not in str(made.program.graph)
    torch.testing.assert_close(made.program.module()(x), expected, rtol=0, atol=0)
