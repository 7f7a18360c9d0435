"""Bags of embeddings are built."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.contracts.backends import DynamicDimension
from lowerdeck.steps.export import export
from tests.marks import quick_first


class Bags(nn.Module):
    """A classifier of texts, as fastText has it."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bag, self.classes = nn.EmbeddingBag(50, 16, **options), nn.Linear(16, 4)

    def forward(self, tokens: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        result: torch.Tensor = self.classes(self.bag(tokens, per_sample_weights=weights))
        return result


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_each_mode_has_its_result(mode: str) -> None:
    network, tokens = Bags(mode=mode).eval(), torch.randint(0, 50, [3, 10])
    program = export(network, [[3, 10]], input_dtypes=["int64"])
    torch.testing.assert_close(program.module(check_guards=False)(tokens), network(tokens))
    assert not any("embedding_bag" in str(node.target) for node in program.graph.nodes)


def test_weights_of_tokens_are_factors() -> None:
    network, tokens, weights = Bags(mode="sum").eval(), torch.randint(0, 50, [2, 6]), torch.rand(2, 6)
    program = export(network, [[2, 6], [2, 6]], input_dtypes=["int64", "float32"])
    torch.testing.assert_close(program.module(check_guards=False)(tokens, weights), network(tokens, weights))


@pytest.mark.parametrize("steps", [(4, 2), (6, 4), (8, 2)], ids=["last longer", "last shorter", "last empty"])
def test_bags_of_different_sizes_stay(steps: tuple[int, int]) -> None:
    """All were taken to have the step between offsets as their size, and the number of bags was another one."""

    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.arange(6.0)[:, None])

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return F.embedding_bag(tokens, self.weight, torch.arange(0, *steps), mode="sum")

    program, tokens = export(Listed(), [[6]], input_dtypes=["int64"]), torch.arange(6)
    torch.testing.assert_close(program.module(check_guards=False)(tokens), Listed()(tokens))


def test_bags_in_batches_that_vary_have_one_size() -> None:
    network, batch = Bags(mode="sum").eval(), DynamicDimension(dim=0, min=1, max=8)
    program = export(network, [[3, 10]], (batch,), input_dtypes=["int64"])
    assert not any("embedding_bag" in str(node.target) for node in program.graph.nodes)
    for count in (1, 5):
        tokens = torch.randint(0, 50, [count, 10])
        torch.testing.assert_close(program.module(check_guards=False)(tokens), network(tokens))


def test_bags_with_padding_stay() -> None:
    network = Bags(mode="mean", padding_idx=0).eval()
    program = export(network, [[1, 6]], input_dtypes=["int64"])
    assert any("embedding_bag" in str(node.target) for node in program.graph.nodes)


@pytest.mark.parametrize("target", quick_first(["ethos_u55_128", "cortex_m55", "neutron_imxrt700", "xnnpack_cpu"]))
def test_they_are_built(target: str) -> None:
    drawn = [(torch.randint(0, 50, [1, 10]),) for _ in range(8)]
    verdict, detail = lowered(Bags(mode="mean").eval(), drawn, create(target))
    assert verdict == "right", detail
