"""Numbers in the branches of torch.cond become tensors that the branches make."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.graph.nodes import operator_name
from lowerdeck.steps.export import export
from tests.marks import quick_first
from tests.networks import Called


def _nested(x: torch.Tensor) -> torch.Tensor:
    def inner(y: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.cond(y.sum() > 9, lambda z: 3 * z, lambda z: (z > 0.5) * z, (y,))
        return found

    result: torch.Tensor = torch.cond(x.sum() > 0, inner, lambda y: (y + 1) / 4.0, (x,))
    return result


def test_numbers_in_branches_are_tensors_of_the_same_type() -> None:
    program = export(Called(_nested).eval(), [[1, 4]])
    modules = [each for each in program.graph_module.modules() if isinstance(each, torch.fx.GraphModule)]
    assert len(modules) == 5
    called = [operator_name(node) for each in modules for node in each.graph.nodes if node.op == "call_function"]
    assert called.count("aten.full.default") == 3  # a comparison takes a number as one
    for x in (torch.full((1, 4), 3.0), torch.rand(1, 4), -torch.rand(1, 4)):
        made = program.module()(x)
        torch.testing.assert_close(made, _nested(x), rtol=0, atol=0)
        assert made.dtype == torch.float32


@pytest.mark.parametrize("target", quick_first(["neutron_imxrt700", "cortex_m55", "xnnpack_cpu", "ethos_u55_128"]))
def test_branches_behind_a_layer_are_built(target: str) -> None:
    def either(y: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.cond(y.mean() > 0, lambda z: z * 2.0, lambda z: z - 1.0, (y,))
        return result

    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), Called(either)).eval()
    samples = [(torch.randn(1, 3, 8, 8) + shift,) for shift in (-1, 1, -1, 1, -1, 1)]
    assert {bool(network[0](x).mean() > 0) for (x,) in samples} == {True, False}
    verdict, detail = lowered(network, samples, create(target))
    assert verdict == "right", detail
