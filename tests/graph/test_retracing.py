"""A call is replaced by what a function makes of its arguments, in its place in the model."""

from __future__ import annotations

import torch
from torch import nn

from lowerdeck.graph.modules import module_path
from lowerdeck.graph.retracing import called, replace_by, replace_other_uses


class Clamped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Hardtanh(-0.5, 0.25)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x) * 2
        return result


def test_a_call_is_replaced_with_its_numbers_and_its_place() -> None:
    network, x = Clamped().eval(), torch.randn(2, 5)
    program = torch.export.export(network, (x,))
    (node,) = program.graph.find_nodes(op="call_function", target=torch.ops.aten.hardtanh.default)
    replace_by(node, lambda value, lowest, highest: torch.minimum(torch.clamp(value, min=lowest), value * 0 + highest))
    program.graph_module.recompile()
    assert "hardtanh" not in str(program.graph)
    torch.testing.assert_close(program.module()(x), network(x), rtol=0, atol=0)
    (made,) = program.graph.find_nodes(op="call_function", target=torch.ops.aten.minimum.default)
    assert (module_path(made), made.meta["val"].shape) == ("layer", x.shape)


def test_a_call_may_be_replaced_by_what_is_computed_of_it() -> None:
    network, x = Clamped().eval(), torch.randn(2, 5)
    program = torch.export.export(network, (x,))
    (node,) = program.graph.find_nodes(op="call_function", target=torch.ops.aten.hardtanh.default)
    with program.graph.inserting_before(node.next):
        made = called(node, torch.ops.aten.neg.default, node)
    replace_other_uses(node, made)
    assert made.args == (node,)
    program.graph_module.recompile()
    torch.testing.assert_close(program.module()(x), -network(x), rtol=0, atol=0)
