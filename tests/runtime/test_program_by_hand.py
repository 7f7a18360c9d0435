"""lowerdeck.runtime.program, floats and parallel_map: what a program takes, and how samples become that."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torchvision import tv_tensors

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.lowering import ProgramTensor
from lowerdeck.formats.pte import DYNAMIC_BOUND, STATIC, Boxed, Delegate, Method, TensorSpec, Value
from lowerdeck.runtime.floats import FloatProgram, from_program, to_program
from lowerdeck.runtime.parallel_map import in_order, num_processors
from lowerdeck.runtime.program import HostProgram, method_info


class Echo:
    """Gives back what it is given."""

    description = "echo"

    def __init__(self, *, has_threads: bool = False) -> None:
        self.has_threads = has_threads

    def run(self, method: str, inputs: Sequence[Any]) -> tuple[Any, ...]:
        assert not torch.is_grad_enabled()
        return (method, *inputs)

    def reset(self) -> None:
        """There is no state."""

    def batched(self, method: str) -> None:
        """Nothing is executed in batches."""


def spec(*sizes: int, kind: int = 6, order: tuple[int, ...] | None = None, dynamism: int = STATIC) -> TensorSpec:
    return TensorSpec(kind, sizes, order or tuple(range(len(sizes))), dynamism, None, None)


def method(*values: Value, name: str = "forward") -> Method:
    everything = tuple(range(len(values)))
    delegates = (Delegate("A", memoryview(b"")), Delegate("B", memoryview(b"")))
    return Method(name, values, everything, everything[:1], (), (), delegates, (0,))


def program(*values: Value, has_threads: bool = False) -> HostProgram:
    return HostProgram([method(*values)], Echo(has_threads=has_threads))


class Marked(torch.Tensor):
    """A tensor of a class of the user's."""


def grad_of(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    return torch.func.grad(lambda tensor: function(tensor).sum())


class TestInfo:
    def test_of_tensors(self) -> None:
        values = (spec(1, 2), spec(2, 3, kind=1, order=(1, 0)), spec(4, dynamism=DYNAMIC_BOUND))
        info = method_info(method(*values))
        assert list(map(str, info.inputs)) == ["float32 [1, 2]", "int8 [2, 3] in order [1, 0]", "float32 up to [4]"]
        assert [each.index for each in info.inputs] == [0, 1, 2]
        assert [each.is_dynamic for each in info.inputs] == [False, False, True]
        assert info.inputs[1].dtype == torch.int8
        assert len(info.outputs) == 1

    def test_of_plain_values(self) -> None:
        info = method_info(method(True, 1, 0.5, "x", None, Boxed(()), (1.0,)))
        assert list(map(str, info.inputs)) == ["bool", "int", "float", "str", "none", "list", "list"]
        assert info.inputs[0].is_dynamic is False

    def test_of_programs(self) -> None:
        of = HostProgram([method(1), method(2, name="other")], Echo())
        assert of.delegates == ("A", "B", "A", "B")
        assert (of.executor, of.can_fork) == ("echo", True)
        assert not program(1, has_threads=True).can_fork


class TestCalls:
    def test_inputs_in_order_or_as_one_sequence(self) -> None:
        of = program(1, 2)
        assert of(1, 2) == of((1, 2)) == of([1, 2]) == ("forward", 1, 2)
        assert HostProgram([method(1), method(2, name="other")], Echo())(2, method="other") == ("other", 2)

    def test_wrong_names_and_numbers(self) -> None:
        with pytest.raises(LowerdeckError, match="no method 'backward'; it has: forward"):
            program(1)(1, method="backward")
        with pytest.raises(LowerdeckError, match="takes 2 inputs and got 1; it takes int; int"):
            program(1, 2)(1)
        with pytest.raises(LowerdeckError, match="takes 0 inputs and got 1; it takes none"):
            program()(1)

    @pytest.mark.parametrize(("planned", "given"), [(1, True), (True, 1), (1, 1.0), (None, 1), ("x", None)])
    def test_wrong_kinds(self, planned: Value, given: object) -> None:
        with pytest.raises(LowerdeckError, match=f"input 0 of 'forward' is a .*, got {type(given).__name__}"):
            program(planned)(given)
        program(planned)(planned)

    @pytest.mark.parametrize(("planned", "given"), [(3, 5), (True, False), (0.5, 0.6), ("x", "y")])
    def test_plain_values_are_those_of_the_export(self, planned: Value, given: object) -> None:
        """The interpreter computed with the value of the export, whatever it was given."""
        message = f"input 0 of 'forward' is {given!r}; the program was exported for {planned!r}"
        with pytest.raises(LowerdeckError, match=re.escape(message)):
            program(planned)(given)

    def test_a_float_that_was_stored_in_32_bits(self) -> None:
        assert program(0.1)(float(torch.tensor(0.1))) == ("forward", float(torch.tensor(0.1)))

    def test_tensors_as_planned(self) -> None:
        given = torch.zeros(2, 3)
        assert program(spec(2, 3))(given)[1] is given
        with pytest.raises(LowerdeckError, match=re.escape("is a tensor, float32 [2, 3]; got int")):
            program(spec(2, 3))(1)

    @pytest.mark.parametrize("kind", [torch.nn.Parameter, tv_tensors.Mask, Marked])
    def test_tensors_of_other_classes_are_taken_as_plain_ones(self, kind: Any) -> None:
        """ExecuTorch's runtime refused them."""
        values = torch.rand(2, 3)
        given = kind(values)
        called, (batched,) = program(spec(2, 3))(given)[1], program(spec(2, 3)).calls([(given,)])
        for taken in (called, batched[1]):
            assert type(taken) is torch.Tensor
            assert taken.data_ptr() == given.data_ptr()

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (torch.zeros(2, 3).to_sparse(), "a tensor of the layout sparse_coo; pass `to_dense()` of it"),
            (torch.zeros(2, 3).to_sparse_csr(), "a tensor of the layout sparse_csr; pass `to_dense()` of it"),
            (torch.zeros(2, 3).to_mkldnn(), "a tensor of the layout mkldnn; pass `to_dense()` of it"),
            (
                torch.nested.nested_tensor([torch.zeros(3)] * 2),
                "a tensor of the layout nested; pass each of its tensors",
            ),
            (torch.zeros(2, 3, device="meta"), "a tensor on the device meta; pass one with values"),
            (
                FakeTensorMode().from_tensor(torch.zeros(2, 3)),
                "a FakeTensor, which has no memory of its own; pass a pl",
            ),
        ],
    )
    def test_tensors_without_plain_memory(self, given: torch.Tensor, message: str) -> None:
        """They ended in errors of PyTorch, or in advice that does not apply."""
        of = program(spec(2, 3))
        for call in (of, lambda tensor: of.calls([(tensor,)])):
            with pytest.raises(
                LowerdeckError, match=re.escape(f"input 0 of 'forward' is float32 [2, 3]; got {message}")
            ):
                call(given)

    @pytest.mark.parametrize("transformed", [torch.vmap, torch.func.functionalize, grad_of])
    def test_tensors_of_transforms(self, transformed: Any) -> None:
        """Such a call ended the process: the tensor has no address."""
        of = program(spec(2, 3))
        with pytest.raises(LowerdeckError, match=r"torch\.vmap, .* outside of it, sample by sample"):
            transformed(lambda tensor: of(tensor)[1])(
                torch.zeros(4, 2, 3) if transformed is torch.vmap else torch.zeros(2, 3)
            )

    @pytest.mark.parametrize(
        "given", [torch.zeros(2, 2), torch.zeros(2), torch.zeros(2, 3).int(), torch.zeros(2, 3, 1)]
    )
    def test_other_tensors(self, given: torch.Tensor) -> None:
        with pytest.raises(
            LowerdeckError, match=re.escape(f"is float32 [2, 3]; got {str(given.dtype)[6:]} {list(given.shape)}")
        ):
            program(spec(2, 3))(given)

    def test_smaller_tensors_where_the_shape_varies(self) -> None:
        of = program(spec(2, 3, dynamism=DYNAMIC_BOUND))
        for shape in ((2, 3), (1, 3), (2, 1)):
            assert of(torch.zeros(shape))[1].shape == shape
        for wrong in (torch.zeros(3, 3), torch.zeros(2, 4), torch.zeros(2), torch.zeros(1, 3).int()):
            with pytest.raises(LowerdeckError, match="up to"):
                of(wrong)


def tensor(dtype: str = "float32", scale: float | None = None, zero_point: int | None = None) -> ProgramTensor:
    quant_min, quant_max = (None, None) if scale is None else (-128, 127)
    return ProgramTensor(
        name="x",
        dtype=dtype,
        shape=(5,),
        dim_order=(0,),
        scale=scale,
        zero_point=zero_point,
        quant_min=quant_min,
        quant_max=quant_max,
    )


class TestFloats:
    def test_to_integers(self) -> None:
        """x / 0.5 rounded half to even, + 10, saturated."""
        sample = torch.tensor([0.0, 0.25, 0.75, -100.0, 100.0])
        found = to_program(sample, tensor("int8", 0.5, 10))
        assert found.dtype == torch.int8
        assert found.tolist() == [10, 10, 12, -128, 127]

    def test_multiplies_by_the_inverse(self) -> None:
        """0.1 has no exact inverse: 1.45 * 10.0 is 14.5 in float32, and rounds to even."""
        assert to_program(torch.tensor([1.45]), tensor("int8", 0.1, 0)).tolist() == [14]

    def test_from_integers(self) -> None:
        found = from_program(torch.tensor([10, 12, -128], dtype=torch.int8), tensor("int8", 0.5, 10))
        assert found.dtype == torch.float32
        assert found.tolist() == [0.0, 1.0, -69.0]

    def test_a_zero_point_of_zero_is_one(self) -> None:
        assert to_program(torch.tensor([2.0]), tensor("int8", 0.5, 0)).tolist() == [4]
        assert from_program(torch.tensor([4], dtype=torch.int8), tensor("int8", 0.5, 0)).tolist() == [2.0]

    def test_without_a_scale_only_the_element_type_changes(self) -> None:
        assert to_program(torch.tensor([0.5]), tensor("float16")).dtype == torch.float16
        assert to_program(torch.tensor([3]), tensor("int32")).dtype == torch.int32
        assert from_program(torch.tensor([0.5], dtype=torch.float16), tensor("float16")).dtype == torch.float32

    @pytest.mark.parametrize(("sample", "dtype"), [(torch.zeros(1), "int8"), (torch.zeros(1).int(), "float32")])
    def test_integers_that_stand_for_nothing(self, sample: torch.Tensor, dtype: str) -> None:
        with pytest.raises(LowerdeckError, match=f"the program takes {dtype} as 'x' without a scale"):
            to_program(sample, tensor(dtype))

    def test_a_program_of_integers_takes_and_gives_floats(self) -> None:
        class Kept(Echo):
            def run(self, method: str, inputs: Sequence[Any]) -> tuple[Any, ...]:
                return super().run(method, inputs)[1:]

        kept = HostProgram([method(spec(5, kind=1))], Kept())
        of = FloatProgram(kept, [tensor("int8", 0.5, 10)], [tensor("int8", 0.5, 10)])
        (found,) = of(torch.tensor([0.0, 0.6, 1.0, -100.0, 100.0]))
        assert found.tolist() == [0.0, 0.5, 1.0, -69.0, 58.5]
        assert of.executor == "echo"
        with pytest.raises(LowerdeckError, match="takes 1 inputs and got 2"):
            of.encode([torch.zeros(5)] * 2)

    def test_only_what_can_fork_is_worth_several_processes(self) -> None:
        assert FloatProgram(program(), [], []).num_processes == num_processors() == len(os.sched_getaffinity(0))
        assert FloatProgram(program(has_threads=True), [], []).num_processes == 1


def described(item: int) -> tuple[int, int]:
    return 10 * item, os.getpid()


def failing(item: int) -> int:
    return 10 // item


class TestParallelMap:
    def test_results_come_in_order_from_other_processes(self) -> None:
        found = list(in_order(described, list(range(5)), 2))
        assert [value for value, _ in found] == [0, 10, 20, 30, 40]
        processes = {process for _, process in found}
        assert os.getpid() not in processes
        assert len(processes) <= 2

    @pytest.mark.parametrize(("items", "num_processes"), [([1, 2, 3], 1), ([7], 2), ([], 2)])
    def test_little_is_done_here(self, items: list[int], num_processes: int) -> None:
        assert list(in_order(described, items, num_processes)) == [(10 * item, os.getpid()) for item in items]

    def test_two_items_are_worth_processes_and_no_more_than_there_are_items(self) -> None:
        assert os.getpid() not in {process for _, process in in_order(described, [1, 2], 16)}

    def test_an_error_is_raised_here(self) -> None:
        with pytest.raises(ZeroDivisionError):
            list(in_order(failing, [1, 0], 2))
        assert [value for value, _ in in_order(described, [1, 2], 2)] == [10, 20]
