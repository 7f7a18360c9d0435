"""lowerdeck.runtime.shared_twins: a twin is opened once, executes equal inputs once, and never mixes up two of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from lowerdeck.formats.pte import STATIC, Delegate, TensorSpec
from lowerdeck.runtime import shared_twins
from lowerdeck.runtime.batched_method import BatchTwin
from lowerdeck.runtime.shared_twins import SharedTwins

DELEGATE = Delegate("SomeBackend", memoryview(b"payload"))
CPU = torch.device("cpu")


class Reciprocal:
    """A twin that computes 1/x, and counts the elements that it computed."""

    description = "reciprocal"
    num_opened = 0

    def __init__(self) -> None:
        type(self).num_opened += 1
        self.num_computed, self.num_inputs = 0, 1

    def check(self, arguments: Sequence[TensorSpec]) -> None:
        if arguments[0].sizes != arguments[1].sizes:
            raise ValueError("other sizes")

    def __call__(self, arguments: Sequence[torch.Tensor]) -> None:
        given, result = arguments
        result.copy_(self.of(given))

    def of(self, given: torch.Tensor) -> torch.Tensor:
        self.num_computed += given.numel()
        return 1 / given


class Batch:
    """Reciprocals of a batch."""

    description, num_inputs, largest = "reciprocals", 1, 4

    def __init__(self, twin: Reciprocal) -> None:
        self.twin = twin

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [self.twin.of(inputs[0])]

    def cross_check(self, inputs: Sequence[torch.Tensor], rows: Sequence[int], what: str) -> list[torch.Tensor]:
        raise NotImplementedError


class Batchable(Reciprocal):
    """Has an executor for batches."""

    def batched(self, device: torch.device) -> BatchTwin:
        return Batch(self)


def spec(size: int) -> TensorSpec:
    return TensorSpec(scalar_type=6, sizes=(size,), dim_order=(0,), dynamism=STATIC, data=None, memory=None)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Reciprocal]:
    """The twins that were opened."""
    found: list[Reciprocal] = []

    def open_made_twin(*_: object, **__: object) -> Reciprocal:
        found.append(Batchable())
        return found[-1]

    monkeypatch.setattr(shared_twins, "open_made_twin", open_made_twin)
    return found


def test_equal_inputs_are_executed_once_for_all_programs(opened: list[Reciprocal]) -> None:
    twins = SharedTwins({b"payload": b"twin"})
    twins.share(b"payload", 1)
    results = []
    for given in (2.0, 4.0, 2.0, 0.0, -0.0, math.nan, math.nan):
        call = twins.opener("reference")(DELEGATE)
        call.check([spec(1), spec(1)])
        result, value = torch.empty(1), torch.tensor([given])
        call([value, result])
        value.fill_(7.0)  # the program reuses its memory
        results.append(float(result))
    assert results[:5] == [0.5, 0.25, 0.5, math.inf, -math.inf]
    assert all(map(math.isnan, results[5:]))
    (twin,) = opened
    assert twin.num_computed == 5


def test_a_batch_executes_the_samples_that_are_new(opened: list[Reciprocal]) -> None:
    twins = SharedTwins({b"payload": b"twin"})
    twins.share(b"payload", 1)
    for given, count in (([1.0, 2.0], 2), ([2.0, 4.0, 1.0], 3), ([4.0], 3)):
        call = twins.opener("reference")(DELEGATE)
        call.check([spec(1), spec(1)])
        assert isinstance(call, shared_twins._BatchableCall)
        (found,) = call.batched(CPU)([torch.tensor(given)[:, None]])
        assert found.flatten().tolist() == [1 / value for value in given]
        assert opened[0].num_computed == count
    assert len(opened) == 1


def test_other_kinds_of_tensors_and_other_kernels_have_a_twin_of_their_own(opened: list[Reciprocal]) -> None:
    twins = SharedTwins({b"payload": b"twin"})
    twins.share(b"payload", 1)
    for size, resolver in ((1, "reference"), (2, "reference"), (1, "optimized"), (2, "reference")):
        call = twins.opener(resolver)(DELEGATE)
        call.check([spec(size), spec(size)])
        result = torch.empty(size)
        call([torch.full((size,), 2.0), result])
        assert result.tolist() == [0.5] * size
    assert len(opened) == 3
    with pytest.raises(ValueError, match="other sizes"):
        twins.opener("reference")(DELEGATE).check([spec(1), spec(2)])


def test_twins_that_are_not_to_be_shared_are_opened_each_time(opened: list[Reciprocal]) -> None:
    twins = SharedTwins({b"payload": b"twin"})
    assert [twins.opener("reference")(DELEGATE) for _ in range(2)] == opened
