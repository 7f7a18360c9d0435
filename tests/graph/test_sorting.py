"""Sorting, medians and buckets are built, with the results that PyTorch has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.steps.export import export
from tests.marks import quick_first

BOUNDARIES = torch.tensor([-1.0, 0.0, 0.5])
FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "sort": lambda y: tuple(torch.sort(y)),
    "sort of another dimension": lambda y: torch.sort(y, 1, descending=True)[0],
    "sort, stable": lambda y: torch.sort(y, dim=2, stable=True)[0],
    "argsort": lambda y: y.argsort(1, descending=True),
    "msort": lambda y: torch.msort(y[0]),
    "median": lambda y: y.median(),
    "median of a dimension": lambda y: tuple(y.median(2, keepdim=True)),
    "values of the median": lambda y: y[..., :4].median(-1)[0],
    "of single numbers": lambda y: (y.sum().median(0)[0], y.sum().argsort(), torch.kthvalue(y.sum(), 1)[0]),
    "kthvalue": lambda y: tuple(torch.kthvalue(y, 2, 1)),
    "bucketize": lambda y: torch.bucketize(y, BOUNDARIES),
    "bucketize to the right": lambda y: torch.bucketize(y.round(), BOUNDARIES, right=True, out_int32=True),
    "sort of booleans": lambda y: torch.sort(y > 0, descending=True)[0],
    "msort of booleans": lambda y: torch.msort(y[0] > 0),
    "searchsorted in rows": lambda y: torch.searchsorted(y, y.flip(1), sorter=y.argsort(-1)),
    "searchsorted": lambda y: torch.searchsorted(BOUNDARIES, y.round(), side="right"),
}


class Behind(nn.Module):
    """A convolution, and what is made of its result: float32 [1 x 3 x 6 x 5]."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution, self.function = nn.Conv2d(3, 4, 3, padding=1), function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.convolution(x))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_results_are_those_of_pytorch(name: str) -> None:
    network, x = Behind(FUNCTIONS[name]).eval(), torch.randn(1, 3, 6, 5)
    program = export(network, [[1, 3, 6, 5]])
    kinds = ("sort", "median", "kthvalue", "bucketize", "searchsorted")
    assert not [node for node in program.graph.nodes if any(kind in str(node.target) for kind in kinds)]
    results = [each if isinstance(each, tuple) else (each,) for each in (program.module()(x), network(x))]
    for given, wanted in zip(*results, strict=True):
        assert given.dtype == wanted.dtype
        assert torch.equal(given, wanted)


def test_a_stable_order_stays() -> None:
    program = export(Behind(lambda y: torch.sort(y, stable=True)[1]), [[1, 3, 6, 5]])
    assert "aten.sort.stable" in [str(node.target) for node in program.graph.nodes]


CASES = [
    (target, name)
    for name in ("sort", "sort of booleans", "median of a dimension", "bucketize", "searchsorted in rows", "argsort")
    for target in ("ethos_u85_256", "xnnpack_cpu", "neutron_imxrt700", "cortex_m55", "ethos_u55_128")
]


@pytest.mark.parametrize(("target", "name"), quick_first(CASES, quick=2))
def test_they_are_built(target: str, name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    samples = [(torch.randn(1, 3, 6, 5, generator=generator),) for _ in range(8)]
    verdict, detail = lowered(Behind(FUNCTIONS[name]).eval(), samples, create(target))
    assert verdict == "right", detail
