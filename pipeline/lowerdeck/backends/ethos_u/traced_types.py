"""Gives quantized operators the type of their integers where Arm's passes trace a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree

from lowerdeck.compat import arm

if TYPE_CHECKING:
    from executorch.exir.pass_base import ProxyValue

_QUANTIZED_OUTPUTS = "output_qparams"
"""Where Arm's passes keep the quantization of a node's results once their quantize and dequantize nodes are folded."""


def quantized_types() -> Callable[..., ProxyValue]:
    """Return ExportPass._fx, which traces a node, with the type of quantized results corrected.

    After folding, a program of integers still has tanh and other functions, which become tables later. On integers
    PyTorch gives them a float32 result, and so everything behind them, although the values are integers of 8 or 16
    bits. Passes that read types then cast integers to float32, or make constants that TOSA refuses.
    """
    trace = arm.TRACE_NODE.original()

    def trace_quantized(arm_pass: Any, kind: str, target: Any, args: Any, kwargs: Any, meta: Any) -> ProxyValue:
        traced: ProxyValue = trace(arm_pass, kind, target, args, kwargs, meta)
        quantized = meta.data.get(_QUANTIZED_OUTPUTS)
        if not quantized:
            return traced
        dtype = next(iter(quantized.values())).dtype

        def typed(value: Any) -> Any:
            return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

        values = _pytree.tree_map(typed, traced.data)
        arm_pass.tracer.set_metadata(traced.node, values)
        return type(traced)(values, traced.proxy)

    return trace_quantized
