"""Operators with two results, such as torch.max over a dimension, whose indices backends take for values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.export import export
from tests.marks import quick_first

SHAPE = [1, 3, 6, 6]


class Scores(nn.Module):
    """A convolution, and what is made of its scores."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(3, 4, 3, padding=1)
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.convolution(x))


FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "indices of the largest": lambda scores: torch.max(scores, 1)[1],
    "indices of the smallest": lambda scores: torch.min(scores, 1, keepdim=True)[1],
    "the largest and its indices": lambda scores: tuple(torch.max(scores, -1)),
    "the smallest in a sum, and its indices": lambda scores: (
        (smallest := torch.min(scores, 1))[0] + 1,
        smallest[1],
    ),
    "variance and mean": lambda scores: torch.var_mean(scores, (2, 3)),
    "variance and mean of all": lambda scores: torch.var_mean(scores, False),
    "variance and mean of channels": lambda scores: torch.var_mean(scores, 1, correction=0, keepdim=True),
    "deviation alone": lambda scores: torch.std_mean(scores, 1, False, True)[0],
    "the smallest and the largest": lambda scores: tuple(torch.aminmax(scores, dim=1)),
    "the smallest and the largest of all": lambda scores: tuple(torch.aminmax(scores)),
}
TARGETS = ("ethos_u85_256", "ethos_u55_128", "cortex_m55", "neutron_imxrt700", "xnnpack_cpu")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_export_computes_them_apart(name: str) -> None:
    network, values = Scores(FUNCTIONS[name]).eval(), torch.randn(SHAPE)
    program = export(network, [SHAPE])
    assert not [node for node in program.graph.nodes if isinstance(node.meta.get("val"), (tuple, list))]
    results = [each if isinstance(each, tuple) else (each,) for each in (program.module()(values), network(values))]
    for given, wanted in zip(*results, strict=True):
        assert given.dtype == wanted.dtype
        torch.testing.assert_close(given, wanted)


@pytest.mark.parametrize("values", [torch.randint(0, 3, (1, 40)), torch.tensor([[1.0, float("nan"), 2, float("nan")]])])
def test_the_first_of_equal_values_counts(values: torch.Tensor) -> None:
    network = Scores(lambda _: 0)
    network.forward = lambda x: torch.max(x, 1)  # type: ignore[method-assign]
    dtype = str(values.dtype).removeprefix("torch.")
    largest, index = export(network, [list(values.shape)], input_dtypes=[dtype]).module()(values).values()
    assert torch.equal(index, torch.max(values, 1)[1])
    assert torch.equal(largest.nan_to_num(-1), torch.max(values, 1)[0].nan_to_num(-1))


def test_values_alone_stay_one_operator() -> None:
    program = export(Scores(lambda scores: torch.max(scores, 1)[0]), [SHAPE])
    assert [str(node.target) for node in program.graph.nodes if "max" in str(node.target)] == ["aten.max.dim"]


@pytest.mark.parametrize(("target", "name"), quick_first([(target, name) for target in TARGETS for name in FUNCTIONS]))
def test_every_target_returns_indices(target: str, name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    samples = [(torch.randn(SHAPE, generator=generator),) for _ in range(8)]
    verdict, detail = lowered(Scores(FUNCTIONS[name]).eval(), samples, create(target))
    assert verdict == "right", detail


def test_calibrate_refuses_values_in_the_place_of_indices() -> None:
    quantizer = create("ethos_u85_256").quantizer(QuantizationScheme(name="int8"))
    assert quantizer is not None
    program = torch.export.export(Scores(FUNCTIONS["indices of the largest"]).eval(), (torch.randn(SHAPE),))
    with pytest.raises(LowerdeckError, match=r"output 0 is float32 \[1, 6, 6\] and not int64 \[1, 6, 6\]"):
        calibrate(program, quantizer, [(torch.randn(SHAPE),)], 1)
