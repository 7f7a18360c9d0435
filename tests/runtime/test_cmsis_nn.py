"""lowerdeck.runtime.cmsis_nn: integers that CMSIS-NN's own C code gave, and ExecuTorch's definitions of operators."""

from __future__ import annotations

from fractions import Fraction
from importlib.resources import files
from math import floor
from typing import Any

import pytest
import torch
import yaml

from lowerdeck.contracts.runtime_images import SINGLE_ROUNDING, definitions_for
from lowerdeck.formats.pte import STATIC, TensorSpec
from lowerdeck.runtime.cmsis_nn import OPERATORS, check_layouts, requantize, requantize_rounding_once
from lowerdeck.runtime.operators import resolve

HALF = 1 << 30


def random_int8(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-128, 128, shape, generator=generator, dtype=torch.int8)


def called(name: str, *arguments: Any) -> torch.Tensor:
    result: torch.Tensor = OPERATORS[f"cortex_m::{name}.out"][0](*arguments)
    return result


@pytest.mark.parametrize(
    ("value", "multiplier", "shift", "expected"),
    [
        (3, HALF, 0, 2), (-3, HALF, 0, -1),  # the multiplication rounds halves up
        (24, HALF, -4, 1), (-24, HALF, -4, -1), (5, HALF, -1, 2), (-5, HALF, -1, -1),  # the shift, away from zero
        (-1, HALF, -2, 0), (8, (1 << 31) - 1, -4, 1),
        (1000003, 1518500250, -7, 5524), (-1000003, 1518500250, -7, -5524), (70000, 2000000000, 3, 521541),
    ],
)  # fmt: skip
def test_requantization_rounds_twice(value: int, multiplier: int, shift: int, expected: int) -> None:
    assert int(requantize(torch.tensor(value), multiplier, shift)) == expected


@pytest.mark.parametrize(
    ("value", "multiplier", "shift", "expected"),
    [
        (3, HALF, 0, 2), (-3, HALF, 0, -1), (5, HALF, -1, 1), (-5, HALF, -1, -1), (24, HALF, -4, 1),
        (-24, HALF, -4, -1), (-1, HALF, -2, 0), (8, (1 << 31) - 1, -4, 0), (-7, HALF, -1, -2), (2, 1610612736, -1, 1),
        (1000003, 1518500250, -7, 5524), (-1000003, 1518500250, -7, -5524), (70000, 2000000000, 3, 521541),
    ],
)  # fmt: skip
def test_requantization_that_rounds_once(value: int, multiplier: int, shift: int, expected: int) -> None:
    """What CMSIS-NN's C code gives, compiled with CMSIS_NN_USE_SINGLE_ROUNDING."""
    assert int(requantize_rounding_once(torch.tensor(value), multiplier, shift)) == expected


def test_rounding_once_is_what_the_vector_instructions_do() -> None:
    """MVE: VSHL, VQDMULH (drops bits), and VRSHL by at least one bit to the right."""
    generator = torch.Generator().manual_seed(0)
    for shift in range(-31, 9):
        multipliers = torch.randint(1 << 30, 1 << 31, (2000,), generator=generator)
        values = torch.randint(-(1 << 20), 1 << 20, (2000,), generator=generator)
        right = min(-1, shift)
        product = ((values << (shift - right)) * multipliers * 2) >> 32
        by_vectors = (product + (1 << (-right - 1))) >> -right
        assert torch.equal(requantize_rounding_once(values, multipliers, shift), by_vectors), shift


@pytest.mark.parametrize(
    ("parameters", "rows", "expected"),
    [
        (
            (1374389535, 21, -992),
            [[43, 78, -123, 78, -8, 3], [33, -55, 122, -115, -57, -30]],
            [[-84, -40, -126, -40, -112, -108], [-94, -122, 72, -126, -122, -118]],
        ),
        (
            (1889785610, 23, -248),
            [[18, -24, -95, -117, -128, -116], [-90, 127, -80, 39, 64, -68]],
            [[126, -126, -128, -128, -128, -128], [-128, 127, -128, -128, -128, -128]],
        ),
        (
            (1503238554, 26, -31),
            [[-56, -17, -61, 121, -83, 101], [76, 88, -99, -28, 32, -2]],
            [[-128, -128, -128, 127, -128, -128], [-128, 127, -128, -128, -128, -128]],
        ),
    ],
)
def test_softmax_is_that_of_the_c_code(
    parameters: tuple[int, int, int], rows: list[list[int]], expected: list[list[int]]
) -> None:
    values = torch.tensor(rows, dtype=torch.int8)
    assert called("softmax", values, -1, 3, -128, *parameters).tolist() == expected
    assert called("softmax", values.T, 0, 3, -128, *parameters).T.tolist() == expected


def test_averages_round_halves_away_from_zero_whatever_the_zero_point() -> None:
    image = torch.tensor([[1, 2, -1, -2], [1, 2, -1, -2]], dtype=torch.int8)[None, None]  # means 1.5 and -1.5
    for zero_point in (0, 7):
        pooled = called("quantized_avg_pool2d", image, [2, 2], [2, 2], [0, 0], False, zero_point, 1, 1, None)
        assert pooled.flatten().tolist() == [2, -2]
    padded = called("quantized_avg_pool2d", image, [2, 2], [2, 2], [1, 1], False, 0, 1, 1, None)
    assert padded.flatten().tolist() == [1, 1, -2, 1, 1, -2]  # the padding is not counted
    assert torch.equal(
        called("quantized_avg_pool2d_nhwc", image.permute(0, 2, 3, 1), [2, 2], [2, 2], [0, 0], False, 0, 1, 1, None),
        called("quantized_avg_pool2d", image, [2, 2], [2, 2], [0, 0], False, 0, 1, 1, None).permute(0, 2, 3, 1),
    )


SCALES = torch.tensor([HALF, 1518500250, 1100000000, 2000000000], dtype=torch.int32)
SHIFTS = torch.tensor([-7, -6, -8, -9], dtype=torch.int32)
BIAS = torch.tensor([-900, 0, 55, 4000], dtype=torch.int32)
IMAGE, OTHER = random_int8(1, 4, 7, 6), random_int8(1, 4, 7, 6, seed=1)
CHANNELS = (SCALES, SHIFTS, -120, 115)
EXACT: dict[str, tuple[Any, ...]] = {
    "quantized_add": (IMAGE, 3, HALF, 0, OTHER, -5, 1300000000, -1, 4, 1700000000, -18, -128, 90),
    "quantized_mul": (IMAGE, 3, OTHER, -5, 4, 1700000000, -7),
    "quantized_div": (IMAGE, 3, OTHER, -5, 4, 11.5),
    "quantized_activation": (IMAGE, random_int8(256)),
    "quantized_linear": (random_int8(2, 3, 9), random_int8(4, 9), BIAS, None, 5, 0, -2, [HALF], [-7], 127, -128),
    "quantized_batch_matmul": (random_int8(2, 3, 9), 5, random_int8(2, 4, 9, seed=1), -6, 2, HALF, -8, torch.zeros(1)),
    "quantized_conv2d": (
        IMAGE, random_int8(4, 3, 2, 2, seed=1), BIAS, [2, 1], [1, 0], [1, 1], 7, -3, *CHANNELS, torch.zeros(1),
    ),
    "quantized_depthwise_conv2d": (
        IMAGE, random_int8(1, 3, 2, 4, seed=1), None, [2, 1], [1, 0], [1, 1], 1, 7, -3, *CHANNELS, torch.zeros(1),
    ),
    "quantized_transpose_conv2d": (
        IMAGE, random_int8(4, 3, 2, 4, seed=1), BIAS, [2, 1], [1, 0], [0, 0], [1, 1], 7, -3, *CHANNELS, torch.zeros(1),
        torch.zeros(1),
    ),
    "quantized_max_pool2d": (IMAGE, [3, 2], [2, 1], [1, 0], [1, 1], False, 3, 3, -100, 100),
    "minimum": (IMAGE, random_int8(1, 4, 1, 1)),
    "maximum": (IMAGE, random_int8(1, 4, 1, 1)),
    "transpose": (IMAGE, [0, 2, 3, 1]),
    "pad": (IMAGE, [0, 1, 2, 3], [0, 3, 2, 1], -7),
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_other_operators_compute_as_executorch_defines_them(name: str, memory_format: torch.memory_format) -> None:
    import executorch.backends.cortex_m.passes  # noqa: F401  registers them

    arguments = [
        value.to(memory_format=memory_format) if isinstance(value, torch.Tensor) and value is IMAGE else value
        for value in EXACT[name]
    ]
    expected = getattr(torch.ops.cortex_m, name)(*arguments)
    found = called(name, *arguments)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)
    assert resolve(f"cortex_m::{name}.out").num_arguments == len(arguments) + 1


@pytest.mark.parametrize("name", EXACT)
def test_built_for_a_single_rounding_all_that_requantizes_rounds_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ExecuTorch's definitions, with the exact product rounded half up in place of its requantization."""
    import executorch.backends.cortex_m.passes  # noqa: F401  registers them
    from executorch.backends.cortex_m.ops import operators

    used = []

    def exact(value: torch.Tensor, multiplier: int, shift: int) -> torch.Tensor:
        used.append(name)
        real = [Fraction(int(each) * int(multiplier), 1 << (31 - int(shift))) for each in value.flatten()]
        return torch.tensor([floor(each + Fraction(1, 2)) for each in real], dtype=torch.int32).reshape(value.shape)

    monkeypatch.setattr(operators, "requantize_cmsis", exact)
    expected = getattr(torch.ops.cortex_m, name)(*EXACT[name])
    kernel = resolve(f"cortex_m::{name}.out", (SINGLE_ROUNDING,))
    assert torch.equal(kernel.function(*EXACT[name]), expected)
    assert bool(used) is bool(definitions_for([f"cortex_m::{name}.out"], [SINGLE_ROUNDING]))


def test_layouts_round_alike() -> None:
    name, arguments = "cortex_m::quantized_conv2d", EXACT["quantized_conv2d"]
    last = resolve(f"{name}_nhwc.out", (SINGLE_ROUNDING,)).function(IMAGE.permute(0, 2, 3, 1), *arguments[1:])
    assert torch.equal(last.permute(0, 3, 1, 2), resolve(f"{name}.out", (SINGLE_ROUNDING,)).function(*arguments))


def test_a_dilated_convolution_is_one_with_zeros_between_the_weights() -> None:
    """torch has no dilated convolution of integers, so that ExecuTorch's definition cannot be called."""
    weight = random_int8(4, 2, 2, 4, seed=1)
    spread = torch.zeros(4, 2, 4, 4, dtype=torch.int8)
    spread[:, :, ::3] = weight
    rest = (7, -3, *CHANNELS, torch.zeros(1))
    assert torch.equal(
        called("quantized_conv2d", IMAGE, weight, BIAS, [1, 1], [0, 1], [1, 3], *rest),
        called("quantized_conv2d", IMAGE, spread, BIAS, [1, 1], [0, 1], [1, 1], *rest),
    )


def test_with_mve_the_kernel_sum_replaces_bias_and_offset() -> None:
    value, weights, offset = random_int8(2, 9), random_int8(4, 9, seed=1), 5
    kernel_sum = (weights.to(torch.int32).sum(1) * offset + BIAS)[None]
    rest = (0, -2, [HALF], [-7], 127, -128)
    assert torch.equal(
        called("quantized_linear", value, weights, None, kernel_sum, offset, *rest),
        called("quantized_linear", value, weights, BIAS, None, offset, *rest),
    )


def test_long_sums_stay_exact() -> None:
    value, weights = torch.full((1, 4096), 127, dtype=torch.int8), torch.full((1, 4096), 127, dtype=torch.int8)
    weights[0, 0] = 126
    exact = 127 * (127 * 4095 + 126)  # beyond 2^24
    found = called("quantized_linear", value, weights, None, None, 0, 0, 0, [(1 << 31) - 1], [-19], 127, -128)
    assert int(found) == round(exact / 2**19)


def test_every_operator_of_the_installed_version_is_known() -> None:
    listed = yaml.safe_load(files("executorch.backends.cortex_m").joinpath("ops/operators.yaml").read_text())
    for entry in listed:
        name = entry["func"].partition("(")[0]
        # Without the output, which the signature has after the asterisk.
        count = entry["func"].partition("(")[2].partition(", *,")[0].count(",") + 1
        assert resolve(name).num_arguments == count + 1, name


def tensor(*sizes: int, order: tuple[int, ...] = (0, 1, 2, 3)) -> TensorSpec:
    return TensorSpec(1, sizes, order[: len(sizes)], STATIC, None, (1, 0))


LAST = (0, 2, 3, 1)


@pytest.mark.parametrize(
    ("name", "tensors"),
    [
        ("softmax", [tensor(1, 3, 4, 6), tensor(1, 3, 4, 6)]),
        ("softmax", [tensor(1, 1, 4, 6, order=(0, 2, 1, 3)), tensor(1, 1, 4, 6)]),  # one channel lies in any order
        ("transpose", [tensor(4, 6), tensor(6, 4)]),
        ("maximum", [tensor(1, 3, 4, 6, order=LAST)] * 3),
        ("maximum", [tensor(1, 3, 4, 6), tensor(6), tensor(1, 3, 4, 6)]),
        ("maximum", [tensor(1, 3, 4, 6, order=LAST), tensor(1, 1, 1, 1), tensor(1, 3, 4, 6, order=LAST)]),
        ("quantized_mul", [tensor(1, 3, 4, 6, order=LAST), tensor(1, 3, 1, 1), tensor(1, 3, 4, 6, order=LAST)]),
        ("quantized_conv2d", [tensor(1, 3, 4, 6, order=LAST), tensor(4, 3, 3, 3), tensor(1, 4, 4, 6, order=LAST)]),
        ("quantized_conv2d_nhwc", [tensor(1, 4, 6, 3), tensor(4, 3, 3, 3), tensor(1, 4, 6, 4)]),
        ("pad", [tensor(1, 3, 4, 6), tensor(1, 3, 5, 6, order=LAST)]),
    ],
)
def test_layouts_that_kernels_take(name: str, tensors: list[TensorSpec]) -> None:
    check_layouts(f"cortex_m::{name}.out", tensors)


@pytest.mark.parametrize(
    ("name", "tensors"),
    [
        ("softmax", [tensor(1, 3, 4, 6, order=LAST)] * 2),
        ("transpose", [tensor(1, 3, 4, 6, order=LAST), tensor(1, 3, 6, 4)]),
        ("quantized_linear", [tensor(1, 3, 4, 6, order=LAST), tensor(5, 6), tensor(1, 3, 4, 5)]),
        ("maximum", [tensor(1, 3, 4, 6, order=LAST), tensor(1, 3, 4, 6), tensor(1, 3, 4, 6)]),
        ("maximum", [tensor(1, 3, 4, 6, order=LAST), tensor(1, 3, 4, 1), tensor(1, 3, 4, 6, order=LAST)]),
        ("quantized_mul", [tensor(1, 3, 4, 6), tensor(1, 3, 1, 1), tensor(1, 3, 4, 6)]),
        ("quantized_avg_pool2d", [tensor(1, 3, 4, 6), tensor(1, 3, 2, 3)]),
    ],
)
def test_layouts_that_kernels_would_take_for_others(name: str, tensors: list[TensorSpec]) -> None:
    with pytest.raises(ValueError, match="its kernel takes memory in the order of dimensions"):
        check_layouts(f"cortex_m::{name}.out", tensors)


@pytest.mark.parametrize("operands", [((1, 3, 1, 1), (1, 3, 4, 6)), ((1, 3, 4, 1), (1, 3, 1, 6))], ids=str)
def test_sizes_of_which_cmsis_nn_computes_another_maximum(operands: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    tensors = [*(tensor(*sizes) for sizes in operands), tensor(1, 3, 4, 6)]
    with pytest.raises(ValueError, match="its kernel repeats the elements of operands of these sizes wrongly"):
        check_layouts("cortex_m::maximum.out", tensors)
