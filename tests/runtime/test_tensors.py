"""lowerdeck.runtime.tensors: element types, strides and shared memory of tensor values made by hand."""

from __future__ import annotations

import re
import struct

import pytest
import torch
from executorch.exir.scalar_type import ScalarType

from lowerdeck.formats.pte import DYNAMIC_BOUND, DYNAMIC_UNBOUND, ITEM_BYTES, STATIC, Method, TensorSpec, Value
from lowerdeck.runtime.tensors import DTYPES, allocate, dtype_of, resize, same_bits, strides_of

FLOAT32 = 6


def spec(
    sizes: tuple[int, ...],
    scalar_type: int = FLOAT32,
    order: tuple[int, ...] | None = None,
    dynamism: int = STATIC,
    data: bytes | None = None,
    memory: tuple[int, int] | None = None,
) -> TensorSpec:
    content = None if data is None else memoryview(data)
    return TensorSpec(scalar_type, sizes, order or tuple(range(len(sizes))), dynamism, content, memory)


def method(*values: Value, arenas: tuple[int, ...] = (0,)) -> Method:
    return Method("forward", values, (), (), (), (), (), arenas)


def tensors(*values: Value, arenas: tuple[int, ...] = (0,)) -> list[torch.Tensor]:
    found = [tensor for tensor in allocate(method(*values, arenas=arenas)) if tensor is not None]
    assert len(found) == len(values)
    return found


SCALAR_TYPES = {
    torch.uint8: ScalarType.BYTE,
    torch.int8: ScalarType.CHAR,
    torch.int16: ScalarType.SHORT,
    torch.int32: ScalarType.INT,
    torch.int64: ScalarType.LONG,
    torch.float16: ScalarType.HALF,
    torch.float32: ScalarType.FLOAT,
    torch.float64: ScalarType.DOUBLE,
    torch.bool: ScalarType.BOOL,
    torch.bfloat16: ScalarType.BFLOAT16,
    torch.float8_e5m2: ScalarType.FLOAT8E5M2,
    torch.float8_e4m3fn: ScalarType.FLOAT8E4M3FN,
    torch.float8_e5m2fnuz: ScalarType.FLOAT8E5M2FNUZ,
    torch.float8_e4m3fnuz: ScalarType.FLOAT8E4M3FNUZ,
    torch.uint16: ScalarType.UINT16,
    torch.uint32: ScalarType.UINT32,
    torch.uint64: ScalarType.UINT64,
}


class TestElementTypes:
    def test_each_is_the_one_that_executorch_writes(self) -> None:
        assert {dtype: dtype_of(spec((1,), int(kind))) for dtype, kind in SCALAR_TYPES.items()} == {
            dtype: dtype for dtype in SCALAR_TYPES
        }
        assert len(DTYPES) == len(SCALAR_TYPES)

    def test_the_file_format_and_torch_agree_on_their_sizes(self) -> None:
        assert {kind: ITEM_BYTES[kind] for kind in DTYPES} == {kind: dtype.itemsize for kind, dtype in DTYPES.items()}

    @pytest.mark.parametrize("scalar_type", [8, 12, 22, 30])
    def test_one_that_torch_cannot_compute_is_refused(self, scalar_type: int) -> None:
        with pytest.raises(ValueError, match=f"element type {scalar_type}, which the host runtime does not have"):
            dtype_of(spec((1,), scalar_type))


class TestStrides:
    @pytest.mark.parametrize(
        ("shape", "order", "strides"),
        [
            ((2, 3, 4), (0, 1, 2), (12, 4, 1)),
            ((2, 3, 4, 5), (0, 2, 3, 1), (60, 1, 15, 3)),
            ((2, 3), (1, 0), (1, 2)),
            ((5,), (0,), (1,)),
            ((), (), ()),
            ((4, 0, 3), (0, 1, 2), (3, 3, 1)),
        ],
    )
    def test_by_hand(self, shape: tuple[int, ...], order: tuple[int, ...], strides: tuple[int, ...]) -> None:
        assert strides_of(shape, order) == strides

    def test_as_torch_has_them(self) -> None:
        nhwc = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)
        assert strides_of(nhwc.shape, nhwc.dim_order()) == nhwc.stride()


class TestResize:
    def test_to_a_smaller_shape_in_place(self) -> None:
        tensor = torch.zeros(4, 6)
        held, memory = tensor, tensor.data_ptr()
        resize(tensor, spec((4, 6), dynamism=DYNAMIC_BOUND), (2, 5))
        assert held.shape == (2, 5)
        assert held.stride() == (5, 1)
        assert tensor.data_ptr() == memory

    def test_keeps_the_order_in_memory(self) -> None:
        tensor = torch.zeros(4, 6)
        resize(tensor, spec((4, 6), order=(1, 0), dynamism=DYNAMIC_BOUND), (2, 5))
        assert tensor.stride() == (1, 2)

    def test_to_the_bound_itself(self) -> None:
        tensor = torch.zeros(4)
        resize(tensor, spec((4,), dynamism=DYNAMIC_BOUND), (4,))
        assert tensor.shape == (4,)

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_beyond_its_memory_where_nothing_bounds_it(self, order: tuple[int, ...]) -> None:
        tensor = torch.zeros(2, 2, dtype=torch.int16)
        resize(tensor, spec((2, 2), 2, order, DYNAMIC_UNBOUND), (3, 5))
        tensor.fill_(7)
        assert tensor.dtype == torch.int16
        assert tensor.stride() == strides_of((3, 5), order)
        assert tensor.tolist() == [[7] * 5] * 3
        assert tensor.untyped_storage().nbytes() == 30

    @pytest.mark.parametrize("shape", [(2,), (4,)])
    def test_a_static_tensor_is_not_resized(self, shape: tuple[int, ...]) -> None:
        message = re.escape(f"a result has shape {list(shape)} where the program's tensor is [4]")
        with pytest.raises(ValueError, match=message):
            resize(torch.zeros(4), spec((4,)), shape)

    @pytest.mark.parametrize("shape", [(3, 4), (2, 5), (2, 4, 1), (2,)])
    def test_not_beyond_a_bound(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match=r"is bounded by \[2, 4\]"):
            resize(torch.zeros(2, 4), spec((2, 4), dynamism=DYNAMIC_BOUND), shape)

    @pytest.mark.parametrize("shape", [(2,), (2, 3, 1)])
    def test_the_number_of_dimensions_stays(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match=f"a result has {len(shape)} dimensions where the program's tensor has 2"):
            resize(torch.zeros(2, 4), spec((2, 4), dynamism=DYNAMIC_UNBOUND), shape)


class TestAllocate:
    def test_what_is_no_tensor_gets_none(self) -> None:
        found = allocate(method(3, spec((2,)), None, "text"))
        assert [tensor is None for tensor in found] == [True, False, True, True]

    def test_planned_tensors_share_their_arena(self) -> None:
        """Elements 2 and 3 of the first are the second, and the third lies in another arena."""
        whole, part, other = tensors(
            spec((4,), memory=(1, 0)), spec((2,), memory=(1, 8)), spec((4,), memory=(2, 0)), arenas=(0, 16, 16)
        )
        assert whole.tolist() == [0.0] * 4
        part.fill_(5.0)
        assert whole.tolist() == [0.0, 0.0, 5.0, 5.0]
        assert other.tolist() == [0.0] * 4

    def test_one_arena_holds_tensors_of_several_types(self) -> None:
        floats, octets = tensors(spec((1,), memory=(1, 4)), spec((8,), 0, memory=(1, 0)), arenas=(0, 8))
        floats.fill_(1.0)
        assert bytes(octets.tolist()) == struct.pack("<if", 0, 1.0)

    def test_without_a_plan_each_has_zeros_of_its_own(self) -> None:
        first, second = tensors(spec((2, 3)), spec((2, 3)))
        first.fill_(1.0)
        assert second.tolist() == [[0.0] * 3] * 2

    def test_a_constant_is_a_copy_in_the_order_of_its_dimensions(self) -> None:
        content = bytearray(struct.pack("<6h", *range(6)))
        (tensor,) = tensors(spec((2, 3), 2, (1, 0), data=bytes(content)))
        assert tensor.tolist() == [[0, 2, 4], [1, 3, 5]]
        tensor.fill_(9)
        assert content == struct.pack("<6h", *range(6))

    def test_a_buffer_starts_with_its_content_in_its_arena(self) -> None:
        before, buffer = tensors(
            spec((1,), 3, memory=(1, 0)), spec((2,), 3, data=struct.pack("<2i", 7, 8), memory=(1, 4)), arenas=(0, 12)
        )
        assert (before.tolist(), buffer.tolist()) == ([0], [7, 8])

    def test_empty_and_scalar(self) -> None:
        empty, scalar = tensors(spec((0, 3), data=b""), spec((), data=struct.pack("<f", 2.5)))
        assert empty.shape == (0, 3)
        assert scalar.item() == 2.5

    def test_an_unaligned_plan_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"a tensor of torch\.float32 is planned at 2, not aligned"):
            allocate(method(spec((1,), memory=(1, 2)), arenas=(0, 8)))


def test_bits_tell_zeros_apart_and_nans_are_equal() -> None:
    assert same_bits(torch.tensor([float("nan")]), torch.tensor([float("nan")]))
    assert not same_bits(torch.tensor(0.0), torch.tensor(-0.0))
    assert not same_bits(torch.tensor([1.0]), torch.tensor([[1.0]]))
    assert same_bits(torch.ones(2, 3).t(), torch.ones(3, 2))
