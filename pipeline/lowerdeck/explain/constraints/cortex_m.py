"""Cortex-M: checks of CortexMQuantizer and of the passes that replace nodes by CMSIS-NN's operators."""

from __future__ import annotations

from lowerdeck.explain.undelegated_node import rule

RULES = (
    rule(r"different scales or zero points", "give its operands and results one range, e.g. by a clamp"),
    rule(r"one scale for all weights", "quantization.weight_granularity: per_tensor"),
    rule(r"take int8 of -128", "give its module int8 with quantization.rules"),
    rule(r"not channels-last", "leave model.memory_format null, and keep channels innermost through the whole model"),
    rule(r"groups=1, output_padding=0", "transpose with groups=1 and dilation=1, and pad the result by itself"),
    rule(r"CortexMMaxPool2DCheck", "pool without dilation and without ceil_mode"),
    rule(r"CortexMAvgPool2DCheck", "leave divisor_override out, and multiply by a constant"),
    rule(r"CortexMSoftmaxCheck", "take the softmax over the channels of an image, or else over the last dimension"),
    rule(r"CortexMBmmCheck", "multiply matrices of three dimensions, with a reshape before and after it"),
    rule(
        r"CortexM(AddMul|Div)Check",
        "give both inputs the same shape, or for a sum or product of images one value for each channel as the second",
    ),
)
