"""lowerdeck.runtime.batched_method: what runs at once, what runs sample by sample, and that both are the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.formats.pte import (
    DYNAMIC_BOUND,
    Delegate,
    DelegateCall,
    Instruction,
    JumpFalseCall,
    KernelCall,
    TensorSpec,
    Value,
)
from lowerdeck.runtime.batched_method import BatchTwin
from lowerdeck.runtime.exact.nodes import UnsupportedGraphError
from lowerdeck.runtime.interpreter import Interpreter
from lowerdeck.runtime.program import HostProgram
from tests.runtime.test_interpreter_by_hand import BOOL, VIEW, floats, method, spec

DELEGATE = Delegate("Npu", memoryview(b"payload"))


class Doubling:
    """A twin that doubles, and records the batches that it is given."""

    description = "doubling twin"

    def __init__(
        self, missing: str = "", wrong: bool = False, fault: Exception | None = None, largest: int = 3, room: int = 100
    ) -> None:
        self.missing, self.wrong, self.fault, self.largest, self.room = missing, wrong, fault, largest, room
        self.batches: list[tuple[int, ...]] = []
        self.single = 0

    def check(self, arguments: Sequence[TensorSpec]) -> None:
        """Anything fits."""

    def __call__(self, arguments: Sequence[torch.Tensor]) -> None:
        self.single += 1
        arguments[1].copy_(arguments[0] * 2)

    def batched(self, device: torch.device) -> BatchTwin:
        if self.missing:
            raise UnsupportedGraphError(f"operator {self.missing} is missing")
        return DoublingAtOnce(self)


class DoublingAtOnce:
    description, num_inputs = "doubling at once", 1

    def __init__(self, twin: Doubling) -> None:
        self.twin, self.largest = twin, twin.largest

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if self.twin.fault is not None:
            raise self.twin.fault
        if len(inputs[0]) > self.twin.room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.twin.batches.append(tuple(inputs[0].shape))
        return [inputs[0] * 2]

    def cross_check(self, inputs: Sequence[torch.Tensor], rows: Sequence[int], what: str) -> list[torch.Tensor]:
        if self.twin.wrong:
            raise LowerdeckError(f"{what}: rows {list(rows)} differ")
        return self(inputs)


def program(twin: Doubling, values: Sequence[Value], *instructions: Instruction, **options: Any) -> HostProgram:
    operators = options.pop("operators", ())
    methods = [method(values, instructions, operators, delegates=[DELEGATE], **options)]
    return HostProgram(methods, Interpreter(methods, lambda delegate: twin))


def samples(count: int, size: int = 3) -> list[tuple[torch.Tensor]]:
    return [(torch.arange(size) + 10.0 * row,) for row in range(count)]


def compare(opened: HostProgram, given: Sequence[tuple[torch.Tensor]]) -> None:
    expected = [opened(*inputs) for inputs in given]
    for found, wanted in zip(opened.calls(given), expected, strict=True):
        assert all(torch.equal(first, second) for first, second in zip(found, wanted, strict=True))


def test_a_delegate_runs_once_for_the_batch() -> None:
    twin = Doubling()
    opened = program(twin, [spec(3), spec(3)], DelegateCall(0, (0, 1)))
    compare(opened, samples(4))
    compare(opened, samples(2))  # another size of batch
    assert (twin.batches, twin.single) == ([(4, 3), (2, 3)], 6)
    assert opened.batch_executor().startswith("interpreter with host twins: doubling at once; operators by PyTorch")
    assert opened.is_cross_checkable()


def test_operators_run_sample_by_sample_in_memory_of_their_own() -> None:
    # exp is not in BATCHABLE; its result shares memory with the delegate's input, as the plan of a device may have it.
    values: list[Value] = [spec(3), spec(3, memory=(1, 0)), spec(3, memory=(1, 0)), spec(3)]
    instructions = KernelCall(0, (0, 1, 1)), KernelCall(1, (1, 2, 2)), DelegateCall(0, (2, 3))
    opened = program(Doubling(), values, *instructions, operators=["aten::relu.out", "aten::exp.out"], arenas=(0, 12))
    compare(opened, [(torch.tensor([-1.0, 0.5, 2.0]) * row,) for row in range(3)])


def test_constants_are_shared() -> None:
    values: list[Value] = [spec(3), spec(3, data=floats(1, 2, 3)), 1, spec(3), spec(3)]
    instructions = KernelCall(0, (0, 1, 2, 3, 3)), DelegateCall(0, (3, 4))
    compare(program(Doubling(), values, *instructions, operators=["aten::add.out"]), samples(3))


def test_views_into_other_tensors() -> None:
    values: list[Value] = [spec(4), (2, 2), spec(2, 2), spec(2, 2)]
    instructions = KernelCall(0, (0, 1, 2)), DelegateCall(0, (2, 3))
    compare(program(Doubling(), values, *instructions, operators=[VIEW]), samples(3, 4))


def test_quantization_runs_at_once_and_equals_single_calls() -> None:
    values: list[Value] = [spec(3), 0.37, 3, -128, 127, 1, spec(3, kind=1), spec(3, kind=1)]
    quantize = KernelCall(0, (0, 1, 2, 3, 4, 5, 6, 6))
    name = "quantized_decomposed::quantize_per_tensor.out"
    opened = program(Doubling(), values, quantize, DelegateCall(0, (6, 7)), operators=[name])
    compare(opened, [(torch.randn(3) * 20,) for _ in range(5)])


def test_a_missing_operator_falls_back_to_the_reference_and_says_so() -> None:
    twin = Doubling(missing="ERF")
    opened = program(twin, [spec(3), spec(3)], DelegateCall(0, (0, 1)))
    compare(opened, samples(3))
    assert (twin.batches, twin.single) == ([], 6)
    assert "doubling twin (the exact executor lacks this: operator ERF is missing)" in opened.batch_executor()
    assert not opened.is_cross_checkable()


@pytest.mark.parametrize("fault", [IndexError("index 1"), RuntimeError("two\nlines"), KeyError("x"), TypeError("t")])
@pytest.mark.parametrize("cross_check", [[], [1]])
def test_the_reference_goes_on_after_a_fault_of_the_executor(fault: Exception, cross_check: list[int]) -> None:
    twin = Doubling(fault=fault)
    opened, given = program(twin, [spec(3), spec(3)], DelegateCall(0, (0, 1))), samples(3)
    assert opened.is_cross_checkable()
    found = opened.calls(given, cross_check=cross_check)
    assert [outputs[0].tolist() for outputs in found] == [(2 * inputs[0]).tolist() for inputs in given]
    compare(opened, given)  # by the reference, again
    text = f"doubling twin (the exact executor failed, report this as a bug of lowerdeck: {type(fault).__name__}: "
    assert text in opened.batch_executor()
    assert "\n" not in opened.batch_executor()
    assert not opened.is_cross_checkable()


def test_memory_bounds_a_batch_and_all_samples_are_executed() -> None:
    twin = Doubling(largest=5 << 20)  # 20 MiB
    compare(program(twin, [spec(3), spec(3)], DelegateCall(0, (0, 1))), samples(5))
    assert [shape[0] for shape in twin.batches] == [2, 2, 1]


def test_a_large_constant_does_not_make_batches_smaller() -> None:
    """Samples share it: a table of embeddings, say."""
    values: list[Value] = [spec(3), spec(3), spec(1 << 20, data=bytes(4 << 20))]
    maximum = KernelCall(0, (0, 0, 1, 1))
    opened = program(Doubling(), values, maximum, operators=["cortex_m::maximum.out"])
    compare(opened, samples(5))
    assert opened.most_samples() == (48 << 20) // (4 * 3)


@pytest.mark.parametrize("cross_check", [[], [0, 3, 6]])
def test_batches_become_smaller_where_a_gpu_has_no_room_for_them(cross_check: list[int]) -> None:
    twin = Doubling(room=2)
    opened, given = program(twin, [spec(3), spec(3)], DelegateCall(0, (0, 1))), samples(7)
    found = opened.calls(given, cross_check=cross_check)
    assert [outputs[0].tolist() for outputs in found] == [(2 * inputs[0]).tolist() for inputs in given]
    assert [shape[0] for shape in twin.batches] == [1] * 7  # after 7 and 3
    assert opened.most_samples() == 1
    assert "failed" not in opened.batch_executor()


def test_a_gpu_without_room_for_one_sample_is_named() -> None:
    opened = program(Doubling(room=0), [spec(3), spec(3)], DelegateCall(0, (0, 1)))
    with pytest.raises(LowerdeckError, match=r"does not hold .* one sample; .*device: cpu.*CUDA out of memory"):
        opened.calls(samples(4))


def test_a_fault_while_the_executor_is_prepared_falls_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Doubling, device: torch.device) -> BatchTwin:
        raise IndexError("no operand")

    monkeypatch.setattr(Doubling, "batched", fail)
    opened = program(Doubling(), [spec(3), spec(3)], DelegateCall(0, (0, 1)))
    compare(opened, samples(2))
    assert "(the exact executor failed, report this as a bug of lowerdeck: IndexError: no operand)" in (
        opened.batch_executor()
    )


class Constant(Doubling):
    """A twin without inputs."""

    def __call__(self, arguments: Sequence[torch.Tensor]) -> None:
        arguments[0].copy_(torch.arange(3.0))

    def batched(self, device: torch.device) -> BatchTwin:
        return ConstantAtOnce(self)


class ConstantAtOnce(DoublingAtOnce):
    num_inputs = 0

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [torch.arange(3.0)[None]]


def test_a_delegate_without_inputs_computes_the_same_for_all_samples() -> None:
    values: list[Value] = [spec(3), spec(3), 1, spec(3)]
    instructions = DelegateCall(0, (1,)), KernelCall(0, (0, 1, 2, 3, 3))
    opened = program(Constant(), values, *instructions, operators=["aten::add.out"])
    compare(opened, samples(4))
    opened.calls(samples(4), cross_check=[0, 3])


def test_a_delegate_without_inputs_may_write_a_view() -> None:
    values: list[Value] = [spec(3), (3,), spec(3), spec(3)]
    instructions = KernelCall(0, (0, 1, 2)), DelegateCall(0, (2,)), KernelCall(1, (2, 3, 3))
    compare(program(Constant(), values, *instructions, operators=[VIEW, "aten::exp.out"]), samples(3))


def test_a_difference_from_the_reference_ends_the_run() -> None:
    opened = program(Doubling(wrong=True), [spec(3), spec(3)], DelegateCall(0, (0, 1)))
    opened.calls(samples(2))
    with pytest.raises(LowerdeckError, match=r"partition 0 for Npu: rows \[1\] differ"):
        opened.calls(samples(2), cross_check=[1])


@pytest.mark.parametrize(
    ("values", "instructions", "reason"),
    [
        ([spec(3), spec(3), spec(3, dynamism=DYNAMIC_BOUND)], (), "tensors of dynamic shape"),
        ([spec(3), spec(3), spec(1, kind=BOOL)], (JumpFalseCall(2, 0),), "control flow"),
        ([spec(3), spec(3), spec(3, data=floats(0, 0, 0), memory=(1, 0))], (), "state"),
    ],
)
def test_what_runs_sample_by_sample(values: list[Value], instructions: Sequence[Instruction], reason: str) -> None:
    twin = Doubling()
    opened = program(twin, values, *instructions, DelegateCall(0, (0, 1)), outputs=[1], arenas=(0, 16))
    assert f"(sample by sample, because it has {reason})" in opened.batch_executor()
    assert not opened.is_cross_checkable()
    if reason != "control flow":
        compare(opened, samples(2))
        assert twin.batches == []


def test_inputs_are_checked() -> None:
    opened = program(Doubling(), [spec(3), spec(3)], DelegateCall(0, (0, 1)))
    with pytest.raises(LowerdeckError, match=r"got float32 \[4\]"):
        opened.calls([*samples(1), (torch.zeros(4),)])
