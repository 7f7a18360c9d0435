"""What a delegate leaves, as a program of its own."""

from __future__ import annotations

import torch
from executorch.exir import to_edge
from torch import nn

from lowerdeck.backends.cortex_m.remainder import remainder
from lowerdeck.graph.nodes import DELEGATION_TAG


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.other = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.relu(x * self.weight) + self.other)


def test_tensors_of_the_delegate_are_inputs_and_constants_stay() -> None:
    program = to_edge(torch.export.export(Chain(), (torch.ones(4),))).exported_program()
    assert remainder(program) is program
    nodes = {node.name: node for node in program.graph.nodes}
    for name in ("aten_mul_tensor", "aten_tanh_default"):
        nodes[name].meta[DELEGATION_TAG] = "tag0"
    left = remainder(program)
    assert [node.name for node in left.graph.nodes if node.op == "call_function"] == [
        "aten_relu_default",
        "aten_add_tensor",
    ]
    assert left.graph_signature.user_inputs == ("aten_mul_tensor",)
    assert left.graph_signature.user_outputs == ("aten_add_tensor",)
    assert set(left.state_dict) == {"other"}
    assert left.module()(torch.tensor([-1.0, 0.0, 1.0, 2.0])).tolist() == [1.0, 1.0, 2.0, 3.0]
    assert DELEGATION_TAG in nodes["aten_mul_tensor"].meta
