"""Ethos-U: checks of executorch/backends/arm/operator_support and of the partitioner."""

from __future__ import annotations

from lowerdeck.explain.shapes import BATCH_OF_ONE, FIXED_SIZES, ShapeChange
from lowerdeck.explain.undelegated_node import UndelegatedNode, format_shape, rule


def _batch(refused: UndelegatedNode) -> str:
    given = f", not {refused.shape[0]}" if refused.shape and refused.shape[0] != 1 else ""
    return f"export with a batch of 1{given} (model.input_shapes)"


def _one_sample(refused: UndelegatedNode) -> ShapeChange | None:
    return BATCH_OF_ONE if refused.shape and refused.shape[0] != 1 else None


def _rank(refused: UndelegatedNode) -> str:
    given = f" of {format_shape(refused.shape)}" if refused.shape else ""
    return f"merge or split dimensions{given} by a reshape, so that no tensor here exceeds the rank in the message"


def _pool_shape(refused: UndelegatedNode) -> str:
    if refused.shape and refused.shape[0] != 1:
        return _batch(refused)
    return f"export with smaller sizes (model.input_shapes) than {format_shape(refused.shape)}: at most 65536 each"


RULES = (
    rule(r"needs N ?== ?1, rest", _pool_shape, _one_sample),
    rule(r"N==1|batch size of 1|batch size 1", _batch, _one_sample),
    rule(r"needs stride <= 3", "pool with a stride of at most 3, twice where more is needed"),
    rule(r"padding needs kernel dims", "pad the input by itself and pool without padding"),
    rule(r"needs kernel_y < 256", "pool twice with smaller kernels"),
    rule(r"needs to have kernel_y<=64", "use a kernel of at most 64 rows and 4096 elements"),
    rule(r"kernel_z==1|stride_z<=1", "replace the 3-D convolution by 2-D ones"),
    rule(r"stride, pad and dilation", "use strides of at most 3, or none of padding and dilation with larger ones"),
    rule(r"Unsupported stride of", "transpose with a stride of 1 or 2 in both directions"),
    rule(r"with dilation .* needs stride", "pool with a stride of 1 and keep every other value by slicing"),
    rule(r"Transpose convolutions with dilation", "transpose with a dilation of 1"),
    rule(r"Only 2D transpose", "replace the 1-D or 3-D transposed convolution by a 2-D one"),
    rule(r"Grouped transpose", "use groups=1, or `weight_granularity: per_tensor` under quantization.rules"),
    rule(r"output padding", "leave output_padding out and pad the result"),
    rule(r"2x, 4x, or 8x", "scale height and width by the same 2, 4 or 8"),
    rule(r"Max supported rank", _rank),
    rule(r"int64", "cast the integers to int32 where the model creates them"),
    rule(r"Mixed floating-point", "convert all inputs to one dtype before"),
    rule(r"indices output", "use the maxima alone: the NPU does not return their indices"),
    rule(r"explicit reduction dimension|keepdim=True", "call argmax with a dimension and without keepdim"),
    rule(
        r"[Ss]ymbolic|unresolved tensor shapes|must be static",
        "export with fixed sizes: model.dynamic_shapes: []",
        FIXED_SIZES,
    ),
    rule(r"control flow", "take the branch or loop out of the model: this device executes none"),
)
