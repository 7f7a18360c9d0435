"""What is computed of integers and constants alone, and what is not."""

from __future__ import annotations

import torch
from torch import nn

from lowerdeck.graph.exact_integers import computed_of_integers, is_integer, is_rounded_quantity
from lowerdeck.steps.export import export


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.steps = nn.Embedding(8, 4), nn.Buffer(torch.arange(3))

    def forward(self, tokens: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        halves = (tokens.float() * 0.5).long()
        return halves + self.steps, self.table(halves), x.argmax(1), tokens.float(), torch.arange(2) * 2, tokens > 1


def test_inputs_of_floats_and_parameters_end_it() -> None:
    program = export(Mixed(), [[1, 3], [1, 3]], input_dtypes=["int64", "float32"])
    found, names = computed_of_integers(program), program.graph_signature.user_outputs
    assert [name in found for name in names] == [True, False, False, True, True, True]
    values = [node.meta["val"] for node in program.graph.output_node().all_input_nodes]
    assert [is_integer(value) for value in values] == [True, False, True, False, True, True]


def test_what_is_no_tensor_is_no_integer() -> None:
    assert not is_integer(3)
    assert not is_integer(torch.zeros(1, dtype=torch.complex64))


class Rounding(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        counts = (x * 3).floor().long()
        image = (x.clamp(0, 1) * 255).to(torch.uint8)
        classes = x.argmax(1)
        kept = (x > 0).long(), x.topk(2).indices, classes + 1, x > 0, x.bool(), counts.argmax(1)
        return counts, counts.clamp(0, 9).view(-1) + 1, image.permute(1, 0), x, *kept


def test_rounded_floats_are_quantities_and_indices_are_not() -> None:
    nodes = export(Rounding(), [[2, 5]]).graph.output_node().args[0]
    assert [is_rounded_quantity(node) for node in nodes] == [True] * 3 + [False] * 7
