"""Neutron: checks of executorch/backends/nxp/backend/ir/converter/node_converters/ops_converters."""

from __future__ import annotations

from fractions import Fraction

from lowerdeck.explain.shapes import ShapeChange
from lowerdeck.explain.undelegated_node import UndelegatedNode, format_shape, next_multiple, rule

_MAX_WEIGHTS = 65535
"""Most kernel height x width x input channels of a convolution, rounded up to the MACs of one unit."""
_LARGEST_SIDE = 4096
_SOFTMAX_CHANNELS, _SOFTMAX_SPATIAL, _SOFTMAX_ELEMENTS = 2040, 4096, 524288


def _fewer_input_channels(refused: UndelegatedNode) -> str:
    height, width, macs = refused.number("kernel_h"), refused.number("kernel_w"), refused.number("num_macs", "num_mac")
    channels = refused.number("inp_channels")
    if not (height and width and macs and channels):
        return "take fewer input channels or a smaller kernel, or split the convolution over its input channels"
    most = _MAX_WEIGHTS // (height * width) // macs * macs
    if not most:
        return f"take a smaller kernel than {height}x{width}: no number of input channels fits"
    parts = -(-channels // most)
    return (
        f"with a {height}x{width} kernel at most {most} input channels fit, not {channels}: split the convolution into "
        f"{parts} over its input channels and add their results, or take a smaller kernel"
    )


def _upsample(refused: UndelegatedNode) -> str:
    given = next(
        (value for value in (refused.value("h_scale"), refused.value("w_scale")) if isinstance(value, float)), None
    )
    by = "" if given is None else f", not by {given:g}"
    return f"scale height and width by 1, 2, 4 or 8{by}; pad or crop the result if the sizes do not match"


def _broadcast(refused: UndelegatedNode) -> str:
    output = refused.node.outputs[0].shape if refused.node.outputs else ()
    sizes = " and ".join(format_shape(tensor.shape) for tensor in refused.node.inputs)
    given = f" ({sizes} give {format_shape(output)})" if output else ""
    return f"one input has to have all elements of the output{given}: expand one of them first, e.g. by torch.cat"


def _dilation(refused: UndelegatedNode) -> str:
    dilation = refused.value("dilation")
    if isinstance(dilation, list | tuple) and all(each == 1 for each in dilation):
        return (
            "leave dilation and ceil_mode at their defaults: this release refuses a dilation of 1 that is written out"
        )
    return "pool with a dilation of 1, e.g. a larger kernel, or every other row and column by slicing before"


def _softmax_dim(refused: UndelegatedNode) -> str:
    dim, channels_dim = refused.number("dim"), refused.number("channels_dim")
    given = f"dimension {channels_dim}, not {dim}" if None not in (dim, channels_dim) else "the channels"
    return f"softmax runs over {given}: permute before and after it, or leave it to the CPU behind the last partition"


def _whole_factor(refused: UndelegatedNode) -> str:
    sizes = ""
    if (pooled := _pooled(refused)) is not None:
        given, wanted, better = map(format_shape, pooled)
        sizes = f": {given} is not divisible by {wanted}, {better} would be"
    return f"export with another shape (model.input_shapes), so that height and width here divide evenly{sizes}"


def _whole_sides(refused: UndelegatedNode) -> ShapeChange | None:
    """Height and width of the model's inputs, as much larger as those here need to be."""
    if (pooled := _pooled(refused)) is None:
        return None
    (height, width), _, (whole_height, whole_width) = pooled
    return ShapeChange(sides=(Fraction(whole_height, height), Fraction(whole_width, width)))


def _pooled(refused: UndelegatedNode) -> tuple[list[int], list[int], list[int]] | None:
    """Height and width of the node's input, of its output, and the next ones that divide evenly; None if unknown."""
    if not (refused.node.inputs and refused.node.outputs):
        return None
    given, wanted = list(refused.node.inputs[0].shape[-2:]), list(refused.node.outputs[0].shape[-2:])
    return given, wanted, [next_multiple(size, by) for size, by in zip(given, wanted, strict=True)]


_SAME_SCALE = (
    "its inputs and its output have to share one scale and zero point: quantize the layers around it alike "
    "(quantization.rules and keep_float), and replace the operators between it and them"
)

RULES = (
    rule(r"_round_ceil|kernel_h \* kernel_w", _fewer_input_channels),
    rule(r"groups > 1", "use groups=1, or upsample by nearest neighbour and convolve instead of transposing"),
    rule(r"group_conv_convertible_as_depthwise", "use groups=1, or upsample by nearest neighbour and convolve"),
    rule(
        r"stride_[hw] > kernel_[hw]",
        lambda refused: (
            f"a transposed convolution's kernel must be at least as large as its stride "
            f"({refused.value('stride_h')}x{refused.value('stride_w')}): enlarge the kernel, or upsample and convolve"
        ),
    ),
    rule(
        r"stride_[hw] > 2", "use strides of at most 2: two transposed convolutions in a row, or upsample and convolve"
    ),
    rule(
        r"padding_[hw] >= kernel_[hw]", "pad less than the kernel's size, and crop the result instead of padding more"
    ),
    rule(r"_broadcast_condition|num_elements", _broadcast),
    rule(r"_has_shared_q_params|_shares_quantization_parameters|_io_quant_is_same|io_quant_consistent", _SAME_SCALE),
    rule(r"MaxPool.*dilation|dilation != \(1, 1\)", _dilation),
    rule(r"non_default_dilation|TransposeConv2D does not support dilation", "transpose with a dilation of 1"),
    rule(r"out_padding", "leave output_padding out: only transposed convolutions may have it"),
    rule(r"ceil_mode", "set ceil_mode=False, and pad the input so that the windows come out even"),
    rule(r"count_include_pad", "set count_include_pad=True, or pad the input by itself and pool without padding"),
    rule(r"divisor_override", "leave divisor_override out and multiply the result"),
    rule(
        r"\b[ks] > |stride > 4096|dim > 4096|dim_sizes",
        f"kernel, stride and dilation may be at most {_LARGEST_SIDE}: pool or convolve twice",
    ),
    rule(r"% output_size|AdaptiveAvgPool2dConverter\._is_supported_in_IR", _whole_factor, _whole_sides),
    rule(r"channels_dim", _softmax_dim),
    rule(
        r"channels > 2040|total_spatial_size",
        lambda refused: (
            f"softmax takes at most {_SOFTMAX_CHANNELS} channels, {_SOFTMAX_SPATIAL} positions and {_SOFTMAX_ELEMENTS} "
            f"elements, not {refused.value('channels')} channels and {refused.value('total_spatial_size')} positions: "
            "export with a smaller shape, or leave softmax to the CPU behind the last partition"
        ),
    ),
    rule(r"alpha", "leave alpha (and beta) out and multiply by it before"),
    rule(r"h_scale|w_scale|supported_scales", _upsample),
    rule(r"mode != ['\"]reflect", "pad with constants, or reflect"),
    rule(r"input_[12]_zp", "quantize both operands symmetrically, so that their zero points are 0"),
    rule(r"n\.args\[1\] == 1", "use the maxima alone: the NPU does not return their indices"),
    rule(r"isinf\(b\)", "use a finite bound for the clamp: without one it does nothing and can be removed"),
    rule(r"tensor_rank\(y\) >= 8", "reshape to fewer than 8 dimensions"),
    rule(r"start >= end", "slice at least one element"),
)

REPLACEMENTS = {
    "aten.elu.default": ("nn.LeakyReLU", "aten.leaky_relu.default"),
    "aten.gelu.default": ("nn.Hardswish", "aten.hardswish.default"),
    "aten.max.dim": ("torch.amax (if the indices are not needed)", "aten.amax.default"),
}
"""Operator without converter -> replacement in the model, and its operator in the edge program."""
