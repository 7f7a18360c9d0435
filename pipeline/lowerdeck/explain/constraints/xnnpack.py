"""XNNPACK: the constraints of executorch/backends/xnnpack/partition/config."""

from __future__ import annotations

from lowerdeck.explain.undelegated_node import UndelegatedNode, format_shape, rule

_DEPTHWISE = "make the weight a parameter or buffer instead of computing it"


def _last_dim(refused: UndelegatedNode) -> str:
    rank = f" (dim={len(refused.shape) - 1})" if refused.shape else ""
    return f"move the dimension to the end{rank}: permute before and after it"


def _mean_rank(refused: UndelegatedNode) -> str:
    given = f", not {format_shape(refused.shape)}" if refused.shape else ""
    return f"keep height and width until the mean is taken: it needs 4 dimensions{given}, or use nn.AvgPool2d"


RULES = (
    rule(r"1D \+ 2D Conv", "replace the 3-D convolution by 2-D ones"),
    rule(
        r"standard 2D convolutions for dynamic",
        "quantize statically (`quantization: int8`): dynamic quantization takes ungrouped 2-D convolutions alone",
    ),
    rule(
        r"per input channel quantization",
        "use groups=1, or `quantization.weight_granularity: per_tensor` for this module under quantization.rules",
    ),
    rule(r"per tensor quantized weights for dynamic", "`quantization.weight_granularity: per_channel`"),
    rule(r"support alpha != 1", "leave alpha out and multiply by it before"),
    rule(
        r"ceil mode is not supported for dynamic",
        "set ceil_mode=False, or export with fixed sizes (model.dynamic_shapes: [])",
    ),
    rule(r"ceil mode", "set ceil_mode=False, and pad the input so that the windows come out even"),
    rule(r"zero-padding in the averaging", "set count_include_pad=False, or pool without padding"),
    rule(r"divisor override", "leave divisor_override out and multiply the result"),
    rule(r"concatenation of", "concatenate two tensors or more: with one it does nothing and can go"),
    rule(r"dim must be the last", _last_dim),
    rule(r"stride \(.*must be less than or equal to kernel", "use a kernel that is at least as large as the stride"),
    rule(r"Only dim-order preserving", "keep one memory format (model.memory_format) through the whole model"),
    rule(r"averaging 4D tensors, got", _mean_rank),
    rule(r"across the innermost", "take the mean over height and width together: dim=(2, 3)"),
    rule(r"keepdim=True", "take the mean with keepdim=True and flatten afterwards, or use nn.AdaptiveAvgPool2d(1)"),
    rule(r"mean.dim does not support dtype", "leave dtype out of the mean"),
    rule(r"only support power == 2|only support int powers", "write the power as products: x * x * x for x ** 3"),
    rule(r"negative padding", "crop by slicing instead of negative padding"),
    rule(r"GELU does not support fp16", "keep this module in float32, or use another activation such as Hardswish"),
    rule(r"unsqueeze_copy only", "add the dimension at the end: unsqueeze(-1)"),
    rule(r"requires matching input and output quantization", "quantize its inputs and its output alike"),
    rule(
        r"BatchNorm cannot be",
        "put the batch norm directly behind a convolution that nothing else reads, so that they become one",
    ),
    rule(r"Prelu weight|weight to be a static|bias to be a static", _DEPTHWISE),
    rule(r"not enabled precision", "add the precision to `target.options.config_precisions`, or set it to null"),
    rule(r"mixed input dtypes", "convert all inputs to one dtype before"),
    rule(r"Unsupported user of max.dim", "use the maxima alone, or the indices alone by argmax"),
    rule(r"Only a single inferred dimension", "reshape so that at most one size is -1"),
)

REPLACEMENTS = {"aten.split_with_sizes_copy.default": ("slices such as x[:, :8] and x[:, 8:]", "slice_copy.Tensor")}
"""Operator without config -> replacement in the model, and its operator in the edge program."""
