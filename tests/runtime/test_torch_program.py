"""lowerdeck.runtime.torch_program: samples in batches have the bits that they have alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lowerdeck.runtime import torch_program as module
from lowerdeck.runtime.batched_method import UnbatchableError
from lowerdeck.runtime.tensors import same_bits
from lowerdeck.runtime.torch_program import torch_program
from lowerdeck.steps.export import export
from tests.conftest import small_network


def drawn(count: int, *shape: int) -> list[tuple[Tensor, ...]]:
    return [(torch.randn(shape),) for _ in range(count)]


@torch.no_grad()
def test_batches_and_the_samples_behind_the_last_have_the_bits_of_single_samples() -> None:
    program = torch_program(export(small_network(), [[1, 3, 32, 32]]))
    batched = program.in_batches(6, drawn(2, 1, 3, 32, 32))
    assert batched.size == 6
    samples = drawn(15, 1, 3, 32, 32)
    for sample, found in zip(samples, batched.calls(samples), strict=True):
        (first,), (second,) = found, program(sample)
        assert same_bits(first, second)
    assert batched.calls([]) == []


@torch.no_grad()
def test_floats_are_rounded_for_a_float16_program() -> None:
    program = torch_program(torch.export.export(nn.ReLU(), (torch.ones(1, 8).half(),)))
    (found,) = program.in_batches(4, drawn(2, 1, 8)).calls([(torch.full((1, 8), 1 / 3),)] * 4)[0]
    assert torch.equal(found, torch.full((1, 8), 1 / 3).half())


class Counter(nn.Module):
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(x)
        return self.count * 1


def test_state_is_executed_sample_by_sample() -> None:
    with pytest.raises(UnbatchableError, match="it has state"):
        torch_program(export(Counter(), [[1, 4]])).in_batches(8, drawn(2, 1, 4))


@torch.no_grad()
def test_batches_shrink_to_what_a_cache_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    program, samples = torch_program(export(nn.ReLU(), [[1, 1_000]])), drawn(2, 1, 1_000)
    assert program.in_batches(32, samples).size == 32
    monkeypatch.setattr(module, "LARGEST_BATCH_BYTES", 40_000)
    assert program.in_batches(32, samples).size == 8
    monkeypatch.setattr(module, "LARGEST_BATCH_BYTES", 12_000)
    with pytest.raises(UnbatchableError, match="would not fit a processor's cache"):
        program.in_batches(32, samples)
