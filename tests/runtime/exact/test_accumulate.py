"""lowerdeck.runtime.exact.accumulate: sums at the bounds of float32, beyond them, and settings of PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from lowerdeck.runtime.exact import accumulate
from lowerdeck.runtime.exact.accumulate import FLOAT32_LIMIT, Convolution, Geometry, Pointwise, exact_kernels, matmul
from tests.marks import quick_first

GENERATOR = torch.Generator().manual_seed(1)


def integers(low: int, high: int, *shape: int) -> torch.Tensor:
    return torch.randint(low, high + 1, shape, generator=GENERATOR)


@pytest.mark.parametrize("largest", [255, 32768])
@pytest.mark.parametrize(
    ("channels", "outputs", "groups", "kernel", "stride", "dilation", "padding"),
    [
        (3, 8, 1, 3, 2, 1, (0, 1, 0, 1)),
        (8, 8, 8, 3, 1, 2, (1, 1, 1, 1)),
        (700, 4, 1, 3, 1, 1, (1, 1, 1, 1)),
        (2000, 5, 1, 1, 1, 1, (0, 0, 0, 0)),
        (8, 16, 8, 3, 1, 1, (2, 0, 1, 1)),
        (600, 2, 2, 9, 1, 1, (4, 4, 4, 4)),
    ],
)
def test_convolutions_are_exact(
    channels: int, outputs: int, groups: int, kernel: int, stride: int, dilation: int, padding: tuple[int, ...],
    largest: int,
) -> None:  # fmt: skip
    values = integers(-largest, largest - 1, 2, channels, 9, 10)
    weights, bias = integers(-127, 127, outputs, channels // groups, kernel, kernel), integers(-(2**20), 2**20, outputs)
    weights[0], values[0, :, :2] = 127, largest - 1
    geometry = Geometry(stride=(stride,) * 2, padding=padding, dilation=(dilation,) * 2, groups=groups)
    convolve = Convolution(weights, bias, geometry, largest=largest)
    with exact_kernels():
        found = convolve(values)
    padded = F.pad(values, [padding[2], padding[3], padding[0], padding[1]])
    expected = F.conv2d(padded, weights, bias, stride=stride, dilation=dilation, groups=groups)
    assert found.dtype == convolve.dtype
    assert torch.equal(found.to(torch.int64), expected)
    assert int(expected.abs().max()) <= convolve.bound
    assert (convolve.bound <= FLOAT32_LIMIT) == (convolve.dtype == torch.float32)


@pytest.mark.parametrize("largest", [255, 32768])
@pytest.mark.parametrize(("channels", "padding"), [(4, (0, 0, 0, 0)), (4, (-1, 0, -1, 2)), (900, (-1, -1, 0, 0))])
def test_transposed_convolutions_are_exact(channels: int, padding: tuple[int, ...], largest: int) -> None:
    values, weights = torch.full((2, channels, 5, 6), largest - 1), integers(-127, 127, channels, 3, 3, 3)
    weights[:, 0] = 127
    bias = integers(-(2**20), 2**20, 3)
    geometry = Geometry(stride=(2, 2), padding=padding, dilation=(1, 1), transposed=True)
    convolve = Convolution(weights, bias, geometry, largest=largest)
    with exact_kernels():
        found = convolve(values)
    plain = F.conv_transpose2d(values.to(torch.float64), weights.to(torch.float64), stride=2)
    cut = F.pad(plain, [padding[2], padding[3], padding[0], padding[1]])
    assert torch.equal(found.to(torch.int64), cut.to(torch.int64) + bias.reshape(-1, 1, 1))


@pytest.mark.parametrize("transposed", [False, True])
def test_small_negative_values_of_16_bits_are_exact(transposed: bool) -> None:
    """The lower two bytes of a small negative number are nearly 2^16: their sums were rounded to multiples of two."""
    values, weights = integers(-400, -1, 2, 1, 9, 10), integers(30, 50, 1, 1, 3, 3)
    convolve = Convolution(
        weights, None, Geometry(stride=(1, 1), padding=(0,) * 4, dilation=(1, 1), transposed=transposed), largest=32768
    )
    assert convolve.dtype == torch.float32
    with exact_kernels():
        found = convolve(values)
    plain = F.conv_transpose2d if transposed else F.conv2d
    assert torch.equal(found.to(torch.float64), plain(values.to(torch.float64), weights.to(torch.float64)))


def test_the_bound_of_float32_decides() -> None:
    geometry = Geometry(stride=(1,), padding=(0, 0), dilation=(1,))
    weights = torch.full((1, 1, 1), 2**24 // 255)
    assert Convolution(weights, None, geometry, largest=255).dtype == torch.float32
    assert Convolution(weights + 1, None, geometry, largest=255).dtype == torch.float64
    bias = torch.tensor([2**24])
    assert Convolution(weights, bias, geometry, largest=255).dtype == torch.float64


def test_sums_beyond_float64_are_refused() -> None:
    geometry = Geometry(stride=(1,), padding=(0, 0), dilation=(1,))
    with pytest.raises(OverflowError, match="exceed float64"):
        Convolution(torch.full((1, 1, 1), 2**40), None, geometry, largest=2**15)
    with pytest.raises(OverflowError, match="exceed float64"):
        matmul(torch.ones(1, 2), torch.ones(2, 1), largest_left=2**30, largest_right=2**30)


@pytest.mark.parametrize("depth", [64, 258, 259, 3000])
def test_matrix_products_are_exact(depth: int) -> None:
    left, right = integers(-255, 255, 2, 3, depth), integers(-255, 255, 2, depth, 4)
    left[:, 0], right[..., 0] = 255, 255
    with exact_kernels():
        found = matmul(left, right, largest_left=255, largest_right=255)
    assert torch.equal(found.to(torch.int64), torch.matmul(left, right))


@pytest.mark.skipif(not accumulate.multiplies_bytes(torch.device("cpu")), reason="the processor lacks VNNI")
def test_products_of_bytes_do_not_saturate() -> None:
    values, weights = torch.full((2, 1, 5, 960), -128, dtype=torch.int8), torch.full((3, 960), -128)
    bias = torch.tensor([0, 1, -(2**25)])
    found = Pointwise(weights, bias)(values)
    assert found[0, 0, 0].tolist() == [128 * 128 * 960 + offset for offset in bias.tolist()]
    with pytest.raises(OverflowError):
        Pointwise(torch.full((1, 2**18), 127), torch.zeros(1))


def test_settings_of_pytorch_return() -> None:
    torch.set_float32_matmul_precision("medium")
    try:
        before = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
        with exact_kernels():
            assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"  # type: ignore[attr-defined]
            assert not torch.backends.cudnn.enabled
        assert torch.backends.mkldnn.matmul.fp32_precision == before  # type: ignore[attr-defined]
        assert torch.backends.cudnn.enabled
    finally:
        torch.set_float32_matmul_precision("highest")


def test_kernels_that_round_in_between_are_off_and_come_back() -> None:
    before = torch._C._get_nnpack_enabled(), torch.backends.cudnn.enabled
    with exact_kernels():
        assert not torch._C._get_nnpack_enabled()
        assert not torch.backends.cudnn.enabled
    assert (torch._C._get_nnpack_enabled(), torch.backends.cudnn.enabled) == before


PRODUCTS = """
import torch
from lowerdeck.runtime.exact.accumulate import Pointwise, multiplies_bytes
generator = torch.Generator().manual_seed(0)
for rows, channels, outputs in ((1, 512, 3), (8, 640, 128), (64, 64, 64)):
    values = torch.randint(-128, 128, (rows, channels), generator=generator).to(torch.int8)
    weights = torch.randint(-127, 128, (outputs, channels), generator=generator)
    found = Pointwise(weights, torch.zeros(outputs))(values)
    exact = values.long() @ weights.t()
    assert torch.equal(found.long(), exact) or not multiplies_bytes(torch.device("cpu"))
print(multiplies_bytes(torch.device("cpu")))
"""


@pytest.mark.parametrize("limit", quick_first(["AVX2", "AVX512_CORE_VNNI"]))
def test_products_of_bytes_are_only_trusted_where_no_instruction_saturates(limit: str) -> None:
    """Stages limit oneDNN to AVX2, whose instructions add pairs of products to 16 bits."""
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": limit}
    done = subprocess.run(
        [sys.executable, "-c", PRODUCTS], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
