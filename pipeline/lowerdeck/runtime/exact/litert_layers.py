"""LiteRT's operators that sum products: convolutions, fully connected layers, matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lowerdeck.runtime.exact.accumulate import Convolution, Geometry, matmul
from lowerdeck.runtime.exact.litert_graph import GraphTensor, Numbers, Operator
from lowerdeck.runtime.exact.litert_rescale import Rescale, Rescaling, from_scales, in_float64

_SAME = 0
"""Padding.SAME of the LiteRT schema; VALID is the other one."""
_NONE, _RELU, _RELU_N1_TO_1, _RELU6 = range(4)
"""ActivationFunctionType of the LiteRT schema, as far as int8 kernels have it."""


def largest(tensor: GraphTensor) -> int:
    """Upper bound of an int8 tensor's absolute values, less its zero point."""
    return max(127 - tensor.zero_point, tensor.zero_point + 128)


def output_range(operator: Operator, activation: int) -> tuple[int, int]:
    """Smallest and largest result, less the zero point (CalculateActivationRangeQuantized of kernel_util.cc).

    Raises:
        UnsupportedGraphError: the activation function has no int8 kernel.
    """
    output = operator.outputs[0]
    low, high = -128, 127

    def quantized(value: float) -> int:
        ratio = float(np.float32(value) / np.float32(output.scale))
        return output.zero_point + int(np.sign(ratio) * np.floor(abs(ratio) + 0.5))

    if activation not in (_NONE, _RELU, _RELU_N1_TO_1, _RELU6):
        raise operator.unsupported(f"fused activation function {activation}")
    if activation in (_RELU, _RELU6):
        low = max(low, quantized(0.0))
    if activation == _RELU6:
        high = min(high, quantized(6.0))
    if activation == _RELU_N1_TO_1:
        low, high = max(low, quantized(-1.0)), min(high, quantized(1.0))
    return low - output.zero_point, high - output.zero_point


def same_padding(size: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """Padding at begin and end of a dimension (tflite/kernels/padding.h); the odd one is at the end."""
    needed = (-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1
    total = max(needed - size, 0)
    return total // 2, total - total // 2


def window_padding(operator: Operator, source: GraphTensor, kernel: tuple[int, int], stride: tuple[int, int],
                   dilation: tuple[int, int] = (1, 1)) -> tuple[int, ...]:  # fmt: skip
    """Top, bottom, left and right padding of a window over [n x h x w x c], from the operator's slot 0."""
    if operator.options.scalar(0, "b") != _SAME:
        return 0, 0, 0, 0
    sides = (same_padding(source.shape[1 + dim], kernel[dim], stride[dim], dilation[dim]) for dim in range(2))
    return tuple(amount for side in sides for amount in side)


def check_int8(operator: Operator, *tensors: GraphTensor) -> None:
    """Raise UnsupportedGraphError unless these and the outputs are int8 tensors with one scale each."""
    for tensor in (*tensors, *operator.outputs):
        if not tensor.is_int8:
            raise operator.unsupported(f"tensor {tensor.name!r} is {tensor.dtype} with {len(tensor.scales)} scales")


class Layer:
    """A convolution with constant weights, or a fully connected layer as one."""

    def __init__(self, convolution: Convolution, rescale: Rescale, shape: tuple[int, ...], *, is_image: bool) -> None:
        self.convolution = convolution
        self.rescale = rescale
        self._shape = shape
        """The output's."""
        self._is_image = is_image
        """Whether the input is [b x n x h x w x c], rather than rows of channels."""

    @property
    def can_pad(self) -> bool:
        """Whether padding of the input can be part of it."""
        return self._is_image and not self.convolution.geometry.transposed

    def limit(self, low: int, high: int) -> None:
        """Limit the results further, as a following activation function does."""
        self.rescale.low, self.rescale.high = max(self.rescale.low, low), min(self.rescale.high, high)

    def pad(self, amounts: Sequence[int]) -> None:
        """Pad the input with zeros (top, bottom, left, right), as a preceding operator does."""
        geometry = self.convolution.geometry
        padding = tuple(a + b for a, b in zip(geometry.padding, amounts, strict=True))
        self.convolution.geometry = replace(geometry, padding=padding)

    def __call__(self, inputs: Sequence[Tensor]) -> Tensor:
        """[b x input's shape] -> [b x output's shape]."""
        values = inputs[0]
        images = values.flatten(0, 1) if self._is_image else values.reshape(1, -1, 1, values.shape[-1])
        images = images.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
        accumulators = self.convolution(images).permute(0, 2, 3, 1).contiguous()
        return self.rescale(accumulators).view(len(values), *self._shape)


def convolution(operator: Operator, device: torch.device) -> Layer:
    """CONV_2D, also with groups. Slots: padding, stride_w, stride_h, activation, dilation_w, dilation_h."""
    source, options = operator.input(0), operator.options
    weights = _weights(operator, channel_axis=0).permute(0, 3, 1, 2)
    geometry = _geometry(operator, (2, 1), (5, 4), weights, source)
    geometry = replace(geometry, groups=source.shape[3] // weights.shape[1])
    return _layer(operator, weights, geometry, options.scalar(3, "b"), device)


def depthwise_convolution(operator: Operator, device: torch.device) -> Layer:
    """DEPTHWISE_CONV_2D. Slots: padding, stride_w, stride_h, multiplier, activation, dilation_w, dilation_h."""
    source, options = operator.input(0), operator.options
    if operator.kernels == "optimized":
        raise operator.unsupported("LiteRT's optimized kernel rounds the last channels differently")
    weights = _weights(operator, channel_axis=3).permute(3, 0, 1, 2)
    geometry = _geometry(operator, (2, 1), (6, 5), weights, source)
    geometry = replace(geometry, groups=source.shape[3])
    return _layer(operator, weights, geometry, options.scalar(4, "b"), device)


def transposed_convolution(operator: Operator, device: torch.device) -> Layer:
    """TRANSPOSE_CONV of output shape, weights [o x h x w x c], input, bias.

    Slots: padding, stride_w, stride_h, activation.
    """
    check_int8(operator, operator.input(2))
    source, options, output = operator.input(2), operator.options, operator.outputs[0]
    weights = _weights(operator, channel_axis=0).permute(3, 0, 1, 2)
    stride = options.scalar(2, "i"), options.scalar(1, "i")
    padding: list[int] = []
    for dim in range(2):
        kernel, size = weights.shape[2 + dim], output.shape[1 + dim]
        begin = same_padding(size, kernel, stride[dim], 1)[0] if options.scalar(0, "b") == _SAME else 0
        reached = (source.shape[1 + dim] - 1) * stride[dim] + kernel
        padding += [-begin, size - reached + begin]
    geometry = Geometry(stride=stride, padding=tuple(padding), dilation=(1, 1), transposed=True)
    return _layer(operator, weights, geometry, options.scalar(3, "b"), device, source=2, bias=3)


def fully_connected(operator: Operator, device: torch.device) -> Layer:
    """FULLY_CONNECTED with constant weights [o x c]. Slots: activation, weights' format, keep_num_dims."""
    if operator.options.scalar(1, "b"):
        raise operator.unsupported("shuffled weights")
    weights = _weights(operator, channel_axis=0)[:, :, None, None]
    geometry = Geometry(stride=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1))
    return _layer(operator, weights, geometry, operator.options.scalar(0, "b"), device)


def batch_matmul(operator: Operator, device: torch.device) -> MatrixProduct:
    """BATCH_MATMUL of two int8 tensors. Slots: adjoint of the first, of the second."""
    check_int8(operator, operator.input(0), operator.input(1))
    return MatrixProduct(operator, device)


class MatrixProduct:
    """A product of two matrices, of which none need be constant."""

    def __init__(self, operator: Operator, device: torch.device) -> None:
        left, right, output = operator.input(0), operator.input(1), operator.outputs[0]
        self._adjoints = operator.options.scalar(0, "B"), operator.options.scalar(1, "B")
        self._largest = largest(left), largest(right)
        depth = left.shape[-2] if self._adjoints[0] else left.shape[-1]
        low, high = output_range(operator, _NONE)
        bound = depth * self._largest[0] * self._largest[1]
        ties_up = operator.kernels == "optimized"
        rescaling = from_scales(_product_of_floats(left, right, output), ties_up=ties_up)
        self._rescale = _rescale(operator, rescaling, bound, low, high, device)

    def __call__(self, inputs: Sequence[Tensor]) -> Tensor:
        """[b x ... x i x k], [b x ... x k x j] -> [b x ... x i x j]."""
        rank = max(tensor.dim() for tensor in inputs)
        left, right = (tensor[(slice(None), *[None] * (rank - tensor.dim()))] for tensor in inputs)
        left, right = (
            tensor.transpose(-1, -2) if adjoint else tensor
            for tensor, adjoint in zip((left, right), self._adjoints, strict=True)
        )
        product = matmul(left, right, largest_left=self._largest[0], largest_right=self._largest[1])
        return self._rescale(product.contiguous())


def _weights(operator: Operator, channel_axis: int) -> Tensor:
    """The constant weights less their zero points, int64 with LiteRT's dimensions.

    Raises:
        UnsupportedGraphError: they are not int8, or have scales along another dimension than the output channels.
    """
    tensor, values = operator.input(1), operator.constant(1)
    if tensor.dtype != "int8" or not tensor.scales:
        raise operator.unsupported(f"weights are {tensor.dtype} with {len(tensor.scales)} scales")
    if len(tensor.scales) > 1 and (tensor.axis, len(tensor.scales)) != (channel_axis, values.shape[channel_axis]):
        raise operator.unsupported(f"weights have {len(tensor.scales)} scales along dimension {tensor.axis}")
    if len(tensor.scales) > 1 and any(tensor.zero_points):
        raise operator.unsupported("weights have zero points per channel")
    return torch.from_numpy(values.astype(np.int64)) - tensor.zero_point


def _geometry(
    operator: Operator, strides: tuple[int, int], dilations: tuple[int, int], weights: Tensor, source: GraphTensor
) -> Geometry:
    options = operator.options
    stride = options.scalar(strides[0], "i"), options.scalar(strides[1], "i")
    dilation = options.scalar(dilations[0], "i", 1), options.scalar(dilations[1], "i", 1)
    kernel = weights.shape[2], weights.shape[3]
    return Geometry(
        stride=stride, padding=window_padding(operator, source, kernel, stride, dilation), dilation=dilation
    )


def _layer(
    operator: Operator, weights: Tensor, geometry: Geometry, activation: int, device: torch.device,
    *, source: int = 0, bias: int = 2,
) -> Layer:  # fmt: skip
    given, output = operator.input(source), operator.outputs[0]
    check_int8(operator, given)
    offsets = operator.inputs[bias] if bias < len(operator.inputs) else None
    if offsets is not None and offsets.dtype != "int32":
        raise operator.unsupported(f"bias is {offsets.dtype}")
    channels = weights.shape[1] if geometry.transposed else weights.shape[0]
    constant = None if offsets is None else torch.from_numpy(operator.constant(bias).reshape(channels).astype(np.int64))
    summed = Convolution(weights, constant, geometry, largest=largest(given)).to(device)
    scales = np.array(operator.input(1).scales, dtype=np.float64)
    real = np.float64(given.scale) * scales / np.float64(output.scale)
    low, high = output_range(operator, activation)
    is_dense = operator.name == "FULLY_CONNECTED"
    rescaling = _layer_rescaling(operator, real, is_dense)
    rescale = _rescale(operator, rescaling, summed.bound, low, high, device)
    return Layer(summed, rescale, output.shape, is_image=not is_dense)


def _layer_rescaling(operator: Operator, real: Numbers, is_dense: bool) -> Rescaling:
    """The rescaling by multipliers float64 [1 or o]."""
    if operator.kernels == "reference":
        return in_float64(real) if is_dense else from_scales(real)
    if is_dense and len(real) == 1:
        real = _product_of_floats(operator.input(0), operator.input(1), operator.outputs[0])
    # The optimized transposed convolution rescales like the reference kernels.
    return from_scales(real, ties_up=operator.name != "TRANSPOSE_CONV")


def _product_of_floats(left: GraphTensor, right: GraphTensor, output: GraphTensor) -> Numbers:
    """GetQuantizedConvolutionMultipler of tflite/kernels/kernel_util.cc, which multiplies the scales as floats."""
    product = np.float64(np.float32(left.scale) * np.float32(right.scale))
    return np.array([product / np.float64(output.scale)])


def _rescale(
    operator: Operator, rescaling: Rescaling, bound: int, low: int, high: int, device: torch.device
) -> Rescale:
    try:
        return Rescale(rescaling, bound=bound, low=low, high=high, device=device)
    except ArithmeticError as error:
        raise operator.unsupported(str(error)) from error
