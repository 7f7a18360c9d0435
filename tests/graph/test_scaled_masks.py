"""lowerdeck.graph.scaled_masks: masks whose numbers are scaled, negated or subtracted in front of a softmax."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from lowerdeck.graph.masked_scores import MASKED
from lowerdeck.graph.masks import constants
from lowerdeck.steps.export import export

SHAPE = [1, 8, 16]
LATER = torch.ones(8, 8).triu(1).bool()
Mask = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def subtracted_twice(scores: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    return scores - ((~kept).float() * 1e9 - scores * 0.5)


MASKS: dict[str, Mask] = {
    "as BERT": lambda scores, kept: scores + (1.0 - kept.float()) * -10000.0,
    "product": lambda scores, kept: scores + (1 - kept.float()) * -1e9,
    "product of a tensor": lambda scores, kept: scores + (1 - kept.float()) * torch.tensor(-1e9),
    "ones": lambda scores, kept: scores + (torch.ones(8) - kept.to(torch.float)) * -1e9,
    "integers": lambda scores, kept: scores + (1 - kept.long()) * -1000000,
    "compared": lambda scores, kept: scores + (kept == 0) * -1e9,
    "both": lambda scores, kept: scores + (1 - kept.float()[:, None] * LATER.mT.any(0).float()) * -1e9,
    "minus one": lambda scores, kept: scores + (kept.float() - 1) * 1e9,
    "negated": lambda scores, kept: scores + -(~kept).float() * 1e9,
    "subtracted": lambda scores, kept: scores - (1 - kept.float()) * 1e9,
    "subtracted twice": subtracted_twice,
    "multiplied": lambda scores, kept: scores * kept - 1e9 * ~kept,
    "divided": lambda scores, kept: scores.masked_fill(~kept, -1e9) / 2,
    "divided as BERT": lambda scores, kept: scores.masked_fill(~kept, -1e4) / 8,
    "by a tensor": lambda scores, kept: scores.masked_fill(~kept, -torch.inf)[None] / torch.tensor(16.0).sqrt(),
    "sum": lambda scores, kept: (scores + torch.where(kept, 0.0, -1e9)) * 0.5,
    "distances": lambda scores, kept: -scores.square().masked_fill(~kept, torch.inf),
    "of all inputs": lambda scores, kept: scores.masked_fill(~kept, -1e9) * 0.5 - 1e9 * LATER,
    "like": lambda scores, kept: torch.where(kept, scores, torch.full_like(scores, -1e9)) / 3,
}
OTHERS: dict[str, Mask] = {
    "temperature": lambda scores, kept: (scores.masked_fill(kept, 1.0) - 0.5).abs() * -1e5,
    "difference": lambda scores, kept: (scores.masked_fill(~kept, 9.0) - scores.mT) / 2,
    "weights": lambda scores, kept: (scores + 1e4 * kept.float()) * 0.5,
}


class Weights(nn.Module):
    """A softmax of masked products: float32 [1 x 8 x 16], bool [8] -> [1 x 8 x 8]."""

    def __init__(self, mask: Mask, *, returns_scores: bool = False) -> None:
        super().__init__()
        self.mask, self.returns_scores = mask, returns_scores

    def forward(self, x: torch.Tensor, kept: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scores = self.mask(x @ x.mT, kept)
        return (scores.softmax(-1), scores) if self.returns_scores else (scores.softmax(-1),)


def check(network: Weights) -> list[float]:
    """Compares the program's values with the network's; returns its numbers."""
    program = export(network, [SHAPE, [8]], input_dtypes=["float32", "bool"])
    torch.manual_seed(0)  # scores beyond 32 would have a say in a row that is masked as a whole: 1e9 has steps of 64
    for length in (3, 8):
        given = (torch.randn(SHAPE), torch.arange(8) < length)
        torch.testing.assert_close(program.module()(*given), network(*given))
    read = [node for node in program.graph.find_nodes(op="placeholder") if node.users]
    stored = [float(value().min()) for node, value in constants(program).items() if node in read]
    return stored + [each for node in program.graph.nodes for each in node.args if isinstance(each, (int, float))]


@pytest.mark.parametrize("name", MASKS)
def test_masks_end_with_their_number(name: str) -> None:
    numbers = check(Weights(MASKS[name]))
    assert MASKED in numbers
    assert all(abs(each) <= -MASKED for each in numbers)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_mask_keeps_its_weights(name: str) -> None:
    assert MASKED not in check(Weights(OTHERS[name]))


@pytest.mark.parametrize("name", ["product", "subtracted", "divided"])
def test_scores_that_are_returned_keep_their_numbers(name: str) -> None:
    check(Weights(MASKS[name], returns_scores=True))


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_inputs_of_numbers_are_masks_by_convention(dtype: str) -> None:
    class Padded(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return (x @ x.mT + (1.0 - mask[:, None]) * -1e9).softmax(-1)

    program = export(Padded(), [SHAPE, [1, 8]], input_dtypes=["float32", dtype])
    assert any(MASKED in node.args for node in program.graph.nodes)
    given = (torch.randn(SHAPE), (torch.arange(8)[None] < 3).to(getattr(torch, dtype)))
    torch.testing.assert_close(program.module()(*given), Padded()(*given))


class Given(nn.Module):
    """A softmax that reads numbers which are an input: float32 [1 x 8 x 8], float32 [1 x 1 x 8] -> [1 x 8 x 8]."""

    def __init__(self, mask: Mask) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, scores: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        return self.mask(scores, given).softmax(-1)


@pytest.mark.parametrize(
    "mask",
    [
        lambda scores, given: (-given * 1e6).expand_as(scores),
        lambda scores, given: scores + (1 - given) * -1e9,
        lambda scores, given: scores - given * 1e7,
        lambda scores, given: scores + (given - 1) * 1e9,
    ],
    ids=["no mask", "product", "subtracted", "minus one"],
)
def test_an_input_may_have_other_numbers_than_0_and_1(mask: Mask) -> None:
    """Half of it was taken for 1: the least of some distances became all of them below 0.5."""
    network = Given(mask)
    program = export(network, [[1, 8, 8], [1, 1, 8]])
    scores = torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(0))
    for numbers in ([0.0, 1, 1, 0, 1, 0, 0, 1], [0.3, 0.2, 0.0, 0.4, 0.25, 0.1, 0.9, 1.0]):
        given = torch.tensor(numbers)[None, None]
        torch.testing.assert_close(program.module()(scores, given), network(scores, given))
