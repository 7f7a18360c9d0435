"""Hooks act around every backend's partitioner in one order, whatever the order in which they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.exir.backend.partitioner import Partitioner, PartitionResult

from lowerdeck.contracts.lowering import Lowering
from lowerdeck.contracts.partition_hooks import HookPosition, PartitionHook
from lowerdeck.contracts.plan import Reason, ReasonCode
from lowerdeck.delegation.partition_chain import PartitionChain, partition_chain
from lowerdeck.delegation.verification import check_partitioner_against_plan
from tests.conftest import TARGETS, Lowered

PROGRAM: Any = object()


class Recorded(Partitioner):  # type: ignore[misc]
    def __init__(self, calls: list[str]) -> None:
        super().__init__()
        self.calls = calls

    def partition(self, exported_program: Any) -> PartitionResult:
        self.calls.append("partitioner")
        return PartitionResult(tagged_exported_program=exported_program, partition_tags={})

    def ops_to_not_decompose(self, ep: Any) -> Any:
        self.calls.append("partitioner")
        return [torch.ops.aten.add.Tensor], None

    def transform_for_pre_decomposition(self, exported_program: Any) -> Any:
        return [exported_program]


def recorded_hook(position: HookPosition, calls: list[str]) -> PartitionHook:
    def around(inner: Callable[[Any], Any], program: Any) -> Any:
        calls.append(f"before {position.name}")
        result = inner(program)
        calls.append(f"after {position.name}")
        return result

    return PartitionHook(position=position, partition=around, ops_to_not_decompose=around)


ORDER = [
    "before STEP",
    "before FALLBACK",
    "before IO_BOUNDARY",
    "before MARK_EXCLUDED",
    "before MARK_FAULTY",
    "before SKIP_FAILING",
    "before BACKEND",
    "partitioner",
    "after BACKEND",
    "after SKIP_FAILING",
    "after MARK_FAULTY",
    "after MARK_EXCLUDED",
    "after IO_BOUNDARY",
    "after FALLBACK",
    "after STEP",
]


POSITIONS = tuple(HookPosition)
ROTATED = [POSITIONS[first:] + POSITIONS[:first] for first in range(len(POSITIONS))]


@pytest.mark.parametrize("given", [*ROTATED, *(given[::-1] for given in ROTATED)])
def test_the_order_is_that_of_the_positions(given: tuple[HookPosition, ...]) -> None:
    calls: list[str] = []
    chain = PartitionChain(Recorded(calls), [recorded_hook(position, calls) for position in given])
    assert chain(PROGRAM).tagged_exported_program is PROGRAM
    assert calls == ORDER
    calls.clear()
    assert chain.ops_to_not_decompose(PROGRAM) == ([torch.ops.aten.add.Tensor], None)
    assert calls == ORDER


def test_a_hook_may_act_around_one_of_the_two_questions() -> None:
    calls: list[str] = []
    idle = PartitionHook(position=HookPosition.BACKEND)
    chain = PartitionChain(Recorded(calls), [idle])
    chain.partition(PROGRAM)
    chain.ops_to_not_decompose(PROGRAM)
    assert calls == ["partitioner", "partitioner"]


def test_what_has_no_hooks_is_passed_on() -> None:
    passed: object = PartitionChain(Recorded([]), []).transform_for_pre_decomposition(PROGRAM)
    assert passed == [PROGRAM]


def test_a_position_has_one_hook() -> None:
    hook = PartitionHook(position=HookPosition.STEP)
    with pytest.raises(AssertionError, match="two hooks have the same position"):
        PartitionChain(Recorded([]), [hook, hook])


@pytest.mark.parametrize("target", TARGETS)
def test_every_backend_has_the_same_chain(target: str, lowered: Callable[[str], Lowered]) -> None:
    small = lowered(target)
    lowering = small.backend().lowering(small.quantized())
    lowering.quantized_inputs = True
    faulty = {"node": Reason(code=ReasonCode.WRONG_RESULT, message="off by 106 LSB")}
    chain = partition_chain(lowering, check_partitioner_against_plan(small.plan), faulty=faulty)
    own = {HookPosition.BACKEND} if target != "xnnpack_cpu" else set()
    assert {hook.position for hook in chain.hooks} == {*HookPosition} - {
        HookPosition.BACKEND,
        HookPosition.FALLBACK,
    } | own


def test_integers_at_the_io_boundary_have_a_hook_only_where_they_are_wanted() -> None:
    lowering = Lowering(partitioner=Recorded([]))
    assert [hook.position for hook in partition_chain(lowering).hooks] == [HookPosition.SKIP_FAILING]
    lowering.quantized_outputs = True
    assert [hook.position for hook in partition_chain(lowering).hooks] == [
        HookPosition.SKIP_FAILING,
        HookPosition.IO_BOUNDARY,
    ]
