"""lowerdeck.runtime.operators: kernels, their arguments, and arithmetic worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lowerdeck.runtime.operators import resolve, view_shape

INT8, UINT8 = 1, 0


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("executorch_prim::sym_max.Scalar", (2, 3), 3), ("executorch_prim::sym_min.Scalar", (2, 3), 2),
        ("executorch_prim::add.Scalar", (5, 3), 8), ("executorch_prim::sub.Scalar", (5, 3), 2),
        ("executorch_prim::mul.Scalar", (5, 3), 15), ("executorch_prim::floordiv.Scalar", (-7, 2), -4),
        ("executorch_prim::floordiv.int", (7, 2), 3), ("executorch_prim::truediv.Scalar", (7, 2), 3.5),
        ("executorch_prim::mod.Scalar", (-7, 3), -1), ("executorch_prim::mod.int", (7, -3), 1),
        ("executorch_prim::mod.Scalar", (7, 3), 1), ("executorch_prim::mod.Scalar", (0, 3), 0),
        ("executorch_prim::mod.Scalar", (-7.5, 2), -1.5), ("executorch_prim::mod.Scalar", (7, 2.5), 2.0),
        ("executorch_prim::eq.Scalar", (2, 2), True), ("executorch_prim::eq.Scalar", (2, 3), False),
        ("executorch_prim::eq.Scalar", (3, 2), False),
        ("executorch_prim::gt.Scalar", (3, 2), True), ("executorch_prim::gt.Scalar", (2, 2), False),
        ("executorch_prim::lt.Scalar", (2, 3), True), ("executorch_prim::lt.Scalar", (2, 2), False),
        ("executorch_prim::ge.Scalar", (2, 2), True), ("executorch_prim::ge.Scalar", (1, 2), False),
        ("executorch_prim::le.Scalar", (2, 2), True), ("executorch_prim::le.Scalar", (3, 2), False),
        ("executorch_prim::neg.Scalar", (2,), -2), ("executorch_prim::sym_not.Scalar", (True,), False),
        ("executorch_prim::sym_ite.Scalar", (True, 1, 2), 1), ("executorch_prim::sym_ite.Scalar", (False, 1, 2), 2),
        ("executorch_prim::sym_float.Scalar", (2,), 2.0), ("executorch_prim::sym_int.Scalar", (2.9,), 2),
        ("executorch_prim::ceil.Scalar", (2.1,), 3), ("executorch_prim::round.Scalar", (2.5,), 2),
        ("executorch_prim::trunc.Scalar", (-2.9,), -2), ("aten::sym_size.int", (torch.zeros(2, 3), 1), 3),
        ("aten::sym_numel", (torch.zeros(2, 3),), 6), ("aten::_local_scalar_dense", (torch.tensor([7]),), 7),
    ],
)  # fmt: skip
def test_arithmetic_on_sizes(name: str, arguments: tuple[Any, ...], expected: object) -> None:
    kernel = resolve(name)
    assert kernel.function(*arguments) == expected
    assert kernel.num_arguments == len(arguments) == len(kernel.keywords)
    assert kernel.outputs == kernel.mutated == ()
    assert (kernel.makes_dtype, kernel.casts) == (False, False)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("dim_order_ops::_to_dim_order_copy.out", 4),
        ("dim_order_ops::_clone_dim_order.out", 4),
        ("et_copy::_h2d_copy.out", 2),
        ("et_copy::_d2h_copy.out", 2),
        ("dim_order_ops::_empty_dim_order.out", 3),
    ],
)
def test_copies(name: str, count: int) -> None:
    kernel = resolve(name)
    assert (kernel.num_arguments, kernel.outputs, kernel.casts) == (count, (count - 1,), True)
    assert len(kernel.keywords) == count
    given = torch.ones(2)
    if "empty" in name:
        assert kernel.function([2, 3]).tolist() == [[0.0] * 3] * 2
    else:
        assert kernel.function(given, False, None) is given


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.uint8, torch.float32])
@pytest.mark.parametrize(("name", "sizes"), [("vec_out", (None, [1.0, 2.0])), ("out", ([2, 4], 1.0, 2.0))])
def test_integers_are_upsampled(name: str, sizes: tuple[object, ...], dtype: torch.dtype) -> None:
    """PyTorch refuses most of them; a `.pte` has integers where a delegate leaves an upsampling to the CPU."""
    kernel = resolve(f"aten::upsample_nearest2d.{name}")
    largest = 2**31 - 1 if dtype == torch.int32 else 100
    found = kernel.function(torch.tensor([[[[1, largest], [3, 4]]]], dtype=dtype), *sizes)
    assert (found.dtype, found.tolist()) == (
        dtype,
        torch.tensor([[[[1, 1, largest, largest], [3, 3, 4, 4]]]], dtype=dtype).tolist(),
    )


class TestSchemas:
    def test_an_out_variant_is_computed_by_the_functional_one(self) -> None:
        kernel = resolve("aten::add.out")
        assert kernel.function is torch.ops.aten.add.Tensor
        assert kernel.keywords == (None, None, "alpha", None)
        assert (kernel.num_arguments, kernel.outputs, kernel.mutated) == (4, (3,), ())
        assert (kernel.makes_dtype, kernel.casts) == (False, False)

    def test_in_place(self) -> None:
        kernel = resolve("aten::neg_")
        assert kernel.function is torch.ops.aten.neg_.default
        assert (kernel.num_arguments, kernel.outputs, kernel.mutated) == (1, (), (0,))

    def test_what_makes_a_tensor_takes_the_outputs_type(self) -> None:
        assert resolve("aten::full.out").makes_dtype
        kernel = resolve("aten::sum.IntList_out")  # takes a dtype itself
        assert not kernel.makes_dtype
        assert "dtype" in kernel.keywords

    def test_several_outputs(self) -> None:
        assert resolve("aten::max.dim_max").outputs == (3, 4)
        assert resolve("aten::split_copy.Tensor_out").outputs == (3,)

    def test_unknown(self) -> None:
        with pytest.raises(ValueError, match=r"is unknown to PyTorch .*; import the package that registers it"):
            resolve("nobody::knows.out")

    def test_without_a_functional_variant(self) -> None:
        with pytest.raises(ValueError, match="has no functional variant in PyTorch"):
            resolve("aten::_amp_update_scale.out")  # PyTorch has it with out and in place


class TestQuantization:
    @pytest.mark.parametrize("overload", ["out", "Tensor_out"])
    def test_quantize(self, overload: str) -> None:
        """x / 0.5 rounded half to even, + 3, within -100 ... 100."""
        kernel = resolve(f"quantized_decomposed::quantize_per_tensor.{overload}")
        assert kernel.outputs == (6,)
        wrap = torch.tensor if overload == "Tensor_out" else (lambda value: value)
        value = torch.tensor([0.0, 0.25, 0.75, 1.0, 90.0, -90.0])
        found = kernel.function(value, wrap(0.5), wrap(3), -100, 100, INT8)
        assert found.dtype == torch.int8
        assert found.tolist() == [3, 3, 5, 5, 100, -100]

    @pytest.mark.parametrize("overload", ["out", "Tensor_out"])
    def test_dequantize(self, overload: str) -> None:
        """(q - 3) * 0.5; integers beyond the ends stay what they are."""
        kernel = resolve(f"quantized_decomposed::dequantize_per_tensor.{overload}")
        found = kernel.function(torch.tensor([3, 5, -127], dtype=torch.int8), 0.5, 3, -100, 100, INT8)
        assert found.dtype == torch.float32
        assert found.tolist() == [0.0, 1.0, -65.0]

    def test_dequantize_to_another_type(self) -> None:
        kernel = resolve("quantized_decomposed::dequantize_per_tensor.out")
        found = kernel.function(torch.tensor([3], dtype=torch.uint8), 0.5, 1, 0, 255, UINT8, out_dtype=5)
        assert found.dtype == torch.float16
        assert found.tolist() == [1.0]


@pytest.mark.parametrize(
    ("elements", "shape", "expected"),
    [
        (6, (2, 3), (2, 3)),
        (6, (-1, 2), (3, 2)),
        (6, (6, -1), (6, 1)),
        (0, (0, 3), (0, 3)),
        (1, (), (1,)[:0]),
        (0, (2, -1), (2, 0)),
    ],
)
def test_views(elements: int, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert view_shape(elements, shape) == expected


@pytest.mark.parametrize(
    ("elements", "shape"), [(6, (2, 2)), (6, (4, -1)), (6, (-1, -1)), (6, (-2, -3)), (1, (-1, -1)), (1, (0, -1))]
)
def test_what_is_no_view(elements: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=f"{elements} elements cannot be viewed as"):
        view_shape(elements, shape)


def test_an_element_type_that_torch_lacks_is_named() -> None:
    kernel = resolve("quantized_decomposed::quantize_per_tensor.out")
    with pytest.raises(ValueError, match="element type 99, which the host runtime does not have"):
        kernel.function(torch.zeros(2), 0.5, 0, -128, 127, 99)
