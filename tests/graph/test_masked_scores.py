"""lowerdeck.graph.masked_scores: the tensors that a mask may have changed."""

from __future__ import annotations

import torch
from torch import nn

from lowerdeck.graph.masked_scores import behind_masks
from lowerdeck.steps.export import export


def names(network: nn.Module) -> list[str]:
    program = export(network.eval(), [[1, 4, 4]])
    found = behind_masks(program)
    return [str(node.target) for node in program.graph.nodes if node in found and node.op == "call_function"]


class Scores(nn.Module):
    """A threshold on what it gets, and a softmax of it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + x).masked_fill(x > 1, -torch.inf).transpose(1, 2).softmax(-1)


class Stored(nn.Module):
    """A mask of the model that it adds."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.mask: torch.Tensor
        self.register_buffer("mask", torch.full((4, 4), value).triu(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + self.mask).softmax(-1)


def test_tensors_between_a_mask_and_a_softmax_are_behind_it() -> None:
    assert names(Scores()) == ["aten.masked_fill.Scalar", "aten.transpose.int"]
    assert names(Stored(-1e9)) == ["aten.add.Tensor"]


def test_a_stored_bias_is_no_mask() -> None:
    assert names(Stored(-3.0)) == []
