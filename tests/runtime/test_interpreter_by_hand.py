"""lowerdeck.runtime.interpreter on methods made by hand: memory, lists, moves, jumps, views, and what is refused."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.formats.pte import (
    DYNAMIC_BOUND,
    STATIC,
    Boxed,
    Delegate,
    DelegateCall,
    FreeCall,
    Instruction,
    JumpFalseCall,
    KernelCall,
    Method,
    MoveCall,
    TensorSpec,
    Value,
)
from lowerdeck.runtime import interpreter
from lowerdeck.runtime.interpreter import Interpreter

FLOAT32, INT32, BOOL = 6, 3, 11
VIEW, COPY_INDEX = "executorch_prim::et_view.default", "executorch_prim::et_copy_index.tensor"


def spec(
    *sizes: int,
    kind: int = FLOAT32,
    dynamism: int = STATIC,
    data: bytes | None = None,
    memory: tuple[int, int] | None = None,
) -> TensorSpec:
    content = None if data is None else memoryview(data)
    return TensorSpec(kind, sizes, tuple(range(len(sizes))), dynamism, content, memory)


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def method(
    values: Sequence[Value],
    instructions: Sequence[Instruction],
    operators: Sequence[str] = (),
    *,
    inputs: Sequence[int] = (0,),
    outputs: Sequence[int] = (-1,),
    delegates: Sequence[Delegate] = (),
    arenas: Sequence[int] = (0,),
    name: str = "forward",
) -> Method:
    """The last value is the output where no other is given."""
    gives = tuple(index % len(values) for index in outputs)
    chains = (tuple(instructions),)
    return Method(name, tuple(values), tuple(inputs), gives, chains, tuple(operators), tuple(delegates), tuple(arenas))


def no_twin(delegate: Delegate) -> interpreter.Twin:
    raise LowerdeckError(f"no twin for {delegate.backend}")


def run(of: Method, *inputs: Any) -> tuple[Any, ...]:
    return Interpreter([of], no_twin).run(of.name, inputs)


def lists(outputs: Sequence[torch.Tensor]) -> list[Any]:
    return [output.tolist() for output in outputs]


class TestOperators:
    def test_one_result(self) -> None:
        """[1, 2] + 3 * [10, 20]; the third argument is alpha."""
        of = method([spec(2), spec(2), 3, spec(2)], [KernelCall(0, (0, 1, 2, 3, 3))], ["aten::add.out"], inputs=(0, 1))
        found = run(of, torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0]))
        assert lists(found) == [[31.0, 62.0]]

    def test_several_results_and_lists(self) -> None:
        values: list[Value] = [spec(4), 2, 0, Boxed((4, 5)), spec(2), spec(2)]
        of = method(values, [KernelCall(0, (0, 1, 2, 3, 3))], ["aten::split_copy.Tensor_out"], outputs=(4, 5))
        assert lists(run(of, torch.tensor([1.0, 2, 3, 4]))) == [[1.0, 2.0], [3.0, 4.0]]

    def test_a_list_of_tensors_with_none(self) -> None:
        """index takes rows 2 and 0 of column indices that are left out."""
        rows = spec(2, kind=4, data=struct.pack("<2q", 2, 0))
        values: list[Value] = [spec(3, 2), Boxed((2, -1)), rows, spec(2, 2)]
        of = method(values, [KernelCall(0, (0, 1, 3, 3))], ["aten::index.Tensor_out"])
        assert lists(run(of, torch.arange(6.0).reshape(3, 2))) == [[[4.0, 5.0], [0.0, 1.0]]]

    def test_two_outputs_are_both_computed_before_either_is_stored(self) -> None:
        """max along dim 0 writes its values to where its input lies."""
        values: list[Value] = [spec(2, 2, memory=(1, 0)), 0, False, spec(2, memory=(1, 0)), spec(2, kind=4)]
        of = method(values, [KernelCall(0, (0, 1, 2, 3, 4, 3))], ["aten::max.dim_max"], outputs=(3, 4), arenas=(0, 16))
        assert lists(run(of, torch.tensor([[1.0, 4.0], [3.0, 2.0]]))) == [[3.0, 4.0], [1, 0]]

    def test_a_smaller_result_gives_the_output_its_shape(self) -> None:
        values = [spec(4, dynamism=DYNAMIC_BOUND), spec(4, dynamism=DYNAMIC_BOUND)]
        of = Interpreter([method(values, [KernelCall(0, (0, 1, 1))], ["aten::neg.out"])], no_twin)
        assert lists(of.run("forward", [torch.tensor([1.0, 2.0])])) == [[-1.0, -2.0]]
        assert lists(of.run("forward", [torch.tensor([1.0, 2.0, 3.0])])) == [[-1.0, -2.0, -3.0]]

    def test_a_result_takes_the_outputs_type_where_torch_would_cast(self) -> None:
        of = method([spec(2, kind=INT32), spec(2)], [KernelCall(0, (0, 1, 1))], ["aten::neg.out"])
        assert lists(run(of, torch.tensor([1, 2], dtype=torch.int32))) == [[-1.0, -2.0]]

    def test_a_result_that_torch_would_not_cast_is_refused(self) -> None:
        of = method([spec(2), spec(2, kind=INT32)], [KernelCall(0, (0, 1, 1))], ["aten::neg.out"])
        with pytest.raises(LowerdeckError, match=r"aten::neg.out\): the result is torch.float32 and .* torch.int32"):
            run(of, torch.zeros(2))

    def test_a_copy_casts_whatever_it_is(self) -> None:
        values: list[Value] = [spec(2), False, None, spec(2, kind=INT32)]
        of = method(values, [KernelCall(0, (0, 1, 2, 3, 3))], ["dim_order_ops::_to_dim_order_copy.out"])
        assert lists(run(of, torch.tensor([1.5, -2.5]))) == [[1, -2]]

    def test_what_makes_a_tensor_makes_it_in_the_outputs_type(self) -> None:
        of = method(
            [Boxed((1,)), 3, 7.0, spec(3, kind=INT32)], [KernelCall(0, (0, 2, 3, 3))], ["aten::full.out"], inputs=()
        )
        (found,) = run(of)
        assert found.dtype == torch.int32
        assert found.tolist() == [7, 7, 7]

    def test_a_value_that_is_computed_is_fetched_for_each_call(self) -> None:
        """full([size of x], 2.0): the size is computed first, and its list is read afterwards."""
        values: list[Value] = [
            spec(4, dynamism=DYNAMIC_BOUND),
            0,
            99,
            Boxed((2,)),
            2.0,
            spec(4, dynamism=DYNAMIC_BOUND),
        ]
        calls = [KernelCall(0, (0, 1, 2)), KernelCall(1, (3, 4, 5, 5))]
        bound = Interpreter([method(values, calls, ["aten::sym_size.int", "aten::full.out"])], no_twin)
        for size in (3, 1, 4):
            assert lists(bound.run("forward", [torch.zeros(size)])) == [[2.0] * size]


class TestValues:
    def test_plain_inputs_and_outputs(self) -> None:
        of = method([2, 3, None], [KernelCall(0, (0, 1, 2))], ["executorch_prim::add.Scalar"])
        assert run(of, 40) == (43,)

    def test_lists_and_tuples_come_out_as_lists(self) -> None:
        assert run(method([Boxed((1, -1)), 5, (1.0, 2.0)], [], inputs=(), outputs=(0, 2))) == ([5, None], [1.0, 2.0])

    def test_a_computed_value_is_gone_at_the_next_call(self) -> None:
        """Adds 1 to what stands in value 1, which starts as 10 each time."""
        of = method([1, 10], [KernelCall(0, (1, 0, 1))], ["executorch_prim::add.Scalar"], inputs=())
        bound = Interpreter([of], no_twin)
        assert [bound.run("forward", ()) for _ in range(2)] == [(11,), (11,)]

    def test_a_later_call_does_not_change_an_output(self) -> None:
        bound = Interpreter([method([spec(1), spec(1)], [KernelCall(0, (0, 1, 1))], ["aten::neg.out"])], no_twin)
        (first,) = bound.run("forward", [torch.ones(1)])
        bound.run("forward", [torch.zeros(1)])
        assert first.item() == -1.0

    def test_a_buffer_keeps_its_state(self) -> None:
        state = spec(1, data=floats(5.0), memory=(1, 0))
        values: list[Value] = [spec(1), state, 1]
        of = method(values, [KernelCall(0, (1, 0, 2, 1))], ["aten::add_.Tensor"], outputs=(1,), arenas=(0, 4))
        bound = Interpreter([of], no_twin)
        assert [bound.run("forward", [torch.ones(1)])[0].item() for _ in range(2)] == [6.0, 7.0]

    def test_a_moved_value_is_the_other_one(self) -> None:
        of = method([spec(1), spec(1), None], [KernelCall(0, (0, 1, 1)), MoveCall(1, 2)], ["aten::neg.out"])
        assert lists(run(of, torch.ones(1))) == [[-1.0]]

    def test_freeing_changes_nothing(self) -> None:
        assert lists(run(method([spec(1)], [FreeCall(0)]), torch.ones(1))) == [[1.0]]


class TestJumps:
    def chosen(self, value: Any, kind: Value = True) -> Any:
        """1 where the condition holds, else 2: 0 jump to 3, 1 move, 2 jump to the end, 3 move."""
        values = [kind, 1, 2, False, None]
        steps: list[Instruction] = [JumpFalseCall(0, 3), MoveCall(1, 4), JumpFalseCall(3, 4), MoveCall(2, 4)]
        return run(method(values, steps), value)[0]

    def test_both_ways(self) -> None:
        assert (self.chosen(True), self.chosen(False)) == (1, 2)

    def test_a_tensor_holds_where_all_of_it_does(self) -> None:
        mask = spec(2, kind=BOOL)
        found = [self.chosen(torch.tensor(values), mask) for values in ([True, True], [True, False], [False, False])]
        assert found == [1, 2, 2]

    def test_other_conditions_are_refused(self) -> None:
        with pytest.raises(LowerdeckError, match=r"JumpFalseCall\): a jump depends on 1, a bool is expected"):
            self.chosen(1)
        with pytest.raises(LowerdeckError, match=r"a tensor of torch.float32, torch.bool is expected"):
            self.chosen(torch.ones(2), spec(2))

    def test_a_loop_ends_after_as_many_instructions_as_on_the_device(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert interpreter.MAX_INSTRUCTIONS == 10_000_000
        monkeypatch.setattr(interpreter, "MAX_INSTRUCTIONS", 5)
        with pytest.raises(LowerdeckError, match="did not end within 5 instructions"):
            run(method([False], [JumpFalseCall(0, 0)], inputs=()))
        assert run(method([1, None], [MoveCall(0, 1)] * 5, inputs=())) == (1,)
        with pytest.raises(LowerdeckError, match=r"instruction 5 \(MoveCall\): the program did not end within 5"):
            run(method([1, None], [MoveCall(0, 1)] * 6, inputs=()))


class TestMemoryPrimitives:
    def test_a_view_shares_memory(self) -> None:
        """A view as [3, 2] of the input, whose rows are then negated in place: the input's memory changes."""
        values: list[Value] = [spec(6), Boxed((2, 3)), -1, 2, spec(3, 2), spec(6)]
        calls = [KernelCall(0, (0, 1, 4)), KernelCall(1, (4, 4)), KernelCall(2, (0, 5, 5))]
        of = method(values, calls, [VIEW, "aten::neg_", "aten::abs.out"], outputs=(4, 0))
        found = run(of, torch.arange(6.0))
        assert lists(found) == [[[0.0, -1.0], [-2.0, -3.0], [-4.0, -5.0]], [0.0, -1.0, -2.0, -3.0, -4.0, -5.0]]

    def test_a_view_of_another_shape_than_planned_is_refused(self) -> None:
        for sizes in ((2, 3), (3, 2, 1)):
            of = method([spec(6), Boxed((2, 3)), 3, 2, spec(*sizes)], [KernelCall(0, (0, 1, 4))], [VIEW])
            with pytest.raises(LowerdeckError, match=r"a view has shape \[3, 2\] where the program's tensor has"):
                run(of, torch.zeros(6))

    def test_a_view_of_varying_shape(self) -> None:
        values: list[Value] = [
            spec(6, dynamism=DYNAMIC_BOUND),
            Boxed((2, 3)),
            -1,
            2,
            spec(3, 2, dynamism=DYNAMIC_BOUND),
        ]
        of = method(values, [KernelCall(0, (0, 1, 4))], [VIEW])
        assert lists(run(of, torch.arange(4.0))) == [[[0.0, 1.0], [2.0, 3.0]]]

    def test_rows_are_copied_one_after_the_other(self) -> None:
        """The target begins with 3 rows and has as many as were copied to it."""
        values: list[Value] = [spec(2), 1, spec(3, 2, dynamism=DYNAMIC_BOUND)]
        of = method(values, [KernelCall(0, (2, 0, 1))], [COPY_INDEX])
        assert lists(run(of, torch.tensor([5.0, 6.0]))) == [[[0.0, 0.0], [5.0, 6.0]]]
        fixed = method([spec(2), 1, spec(3, 2)], [KernelCall(0, (2, 0, 1, 2))], [COPY_INDEX])
        assert lists(run(fixed, torch.tensor([5.0, 6.0]))) == [[[0.0, 0.0], [5.0, 6.0], [0.0, 0.0]]]

    @pytest.mark.parametrize(
        ("name", "args", "message"),
        [
            (VIEW, (0, 1), "takes 3 arguments, the program passes 2"),
            (VIEW, (0, 1, 2, 2), "takes 3 arguments, the program passes 4"),
            (COPY_INDEX, (0, 0, 1, 2, 2), "passes 5"),
            (VIEW, (1, 1, 0), "a value that is not a tensor"),
            (VIEW, (0, 1, 1), "a value that is not a tensor"),
            (COPY_INDEX, (0, 1, 1), "a value that is not a tensor"),
        ],
    )
    def test_wrong_calls(self, name: str, args: tuple[int, ...], message: str) -> None:
        with pytest.raises(ValueError, match=f"operator {name}: .*{message}"):
            Interpreter([method([spec(2), 1, spec(2)], [KernelCall(0, args)], [name])], no_twin)


class Doubling:
    """A twin that doubles its input."""

    description = "doubling"

    def __init__(self) -> None:
        self.checked: list[tuple[int, ...]] = []

    def check(self, arguments: Sequence[TensorSpec]) -> None:
        self.checked += [argument.sizes for argument in arguments]

    def __call__(self, arguments: Sequence[torch.Tensor]) -> None:
        arguments[1].copy_(2 * arguments[0])


class TestDelegates:
    def bound(self, values: Sequence[Value], twin: Doubling) -> Interpreter:
        partition = Delegate("SomeBackend", memoryview(b""))
        return Interpreter([method(values, [DelegateCall(0, (0, 1))], delegates=[partition])], lambda _: twin)

    def test_are_executed_by_their_twins(self) -> None:
        twin = Doubling()
        bound = self.bound([spec(2), spec(2)], twin)
        assert lists(bound.run("forward", [torch.tensor([1.0, 2.0])])) == [[2.0, 4.0]]
        assert twin.checked == [(2,), (2,)]
        assert bound.description == (f"interpreter with host twins: doubling; operators by PyTorch {torch.__version__}")
        assert not bound.has_threads

    @pytest.mark.parametrize("value", [3, spec(2, dynamism=DYNAMIC_BOUND)])
    def test_take_static_tensors_alone(self, value: Value) -> None:
        with pytest.raises(
            ValueError, match="partition 0: it is called with a tensor of dynamic shape or a plain value"
        ):
            self.bound([spec(2), value], Doubling())

    def test_a_failing_twin_is_named(self) -> None:
        with pytest.raises(LowerdeckError, match=r"instruction 0 \(partition 0 for SomeBackend\): "):
            self.bound([spec(2), spec(3)], Doubling()).run("forward", [torch.zeros(2)])

    def test_a_missing_twin_is_an_error(self) -> None:
        with pytest.raises(LowerdeckError, match="no twin for X"):
            Interpreter([method([spec(1)], [], delegates=[Delegate("X", memoryview(b""))])], no_twin)


def test_methods_are_found_by_name() -> None:
    both = [method([value], [], inputs=(), name=name) for name, value in (("forward", 1), ("other", 2))]
    bound = Interpreter(both, no_twin)
    assert (bound.run("forward", ()), bound.run("other", ())) == ((1,), (2,))
    assert bound.description == f"interpreter; operators by PyTorch {torch.__version__}"


class TestRefusals:
    @pytest.mark.parametrize("inputs", [(), (1, 2)])
    def test_other_numbers_of_inputs(self, inputs: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match="zip"):
            run(method([1], []), *inputs)

    @pytest.mark.parametrize(
        ("values", "args", "message"),
        [
            ([spec(2), spec(2)], (0,), "takes 2 arguments and one result, the program passes 1"),
            ([spec(2), spec(2)], (0, 1, 1, 1), "takes 2 arguments and one result, the program passes 4"),
            ([spec(2), spec(2, data=floats(1, 2))], (0, 1, 1), "writes to value 1, which is not a writable tensor"),
            ([spec(2), 3], (0, 1, 1), "writes to value 1, which is not a writable tensor"),
        ],
    )
    def test_wrong_calls(self, values: Sequence[Value], args: tuple[int, ...], message: str) -> None:
        with pytest.raises(ValueError, match=f"operator aten::neg.out: {message}"):
            Interpreter([method(values, [KernelCall(0, args)], ["aten::neg.out"])], no_twin)

    def test_the_result_may_be_left_out_after_the_output(self) -> None:
        assert lists(run(method([spec(1), spec(1)], [KernelCall(0, (0, 1))], ["aten::neg.out"]), torch.ones(1))) == [
            [-1.0]
        ]

    def test_an_operator_in_place_must_not_write_to_a_constant(self) -> None:
        of = method([spec(1, data=floats(1))], [KernelCall(0, (0, 0))], ["aten::neg_"], inputs=())
        with pytest.raises(ValueError, match="operator aten::neg_: writes to value 0"):
            Interpreter([of], no_twin)

    def test_an_unknown_operator(self) -> None:
        with pytest.raises(ValueError, match=r"operator aten::nothing\.out: is unknown to PyTorch"):
            Interpreter([method([spec(1)], [], ["aten::nothing.out"])], no_twin)

    def test_an_operator_that_fails_is_named_with_its_place(self) -> None:
        values = [spec(2, 3), spec(2, 3), spec(2, 2)]
        calls: list[Instruction] = [MoveCall(1, 1), KernelCall(0, (0, 1, 2, 2))]
        with pytest.raises(
            LowerdeckError, match=r"method 'forward', instruction 1 \(aten::mm.out\): .*cannot be multiplied"
        ):
            run(method(values, calls, ["aten::mm.out"], inputs=(0, 1)), torch.zeros(2, 3), torch.zeros(2, 3))
