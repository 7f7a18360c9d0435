"""Step quantize for schemes that modify the model before it is traced: half precision and torchao's quantize_.

Both need the model's modules, while PT2E annotates a traced graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from lowerdeck.compat.fast_graph_passes import fast_graph_passes
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.quantization import QuantizationScheme, QuantizedTensor
from lowerdeck.graph.dynamic_shapes import dynamic_shapes_of
from lowerdeck.graph.memory_formats import memory_format_of
from lowerdeck.graph.modules import check_modules_known, matches, with_outer_modules
from lowerdeck.graph.source_lines import raised_at
from lowerdeck.graph.tracing import trace
from lowerdeck.quantization.quantized_tensors import quantized_tensors

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_FLOAT16_ADVICE = (
    "\nIts weights and inputs are float16: give tensors the type of others (`y.to(x.dtype)` instead of `y.float()`, "
    "`torch.linspace(..., dtype=x.dtype)`), or choose another quantization"
)


def quantize_model(
    model: nn.Module, program: ExportedProgram, scheme: QuantizationScheme
) -> tuple[ExportedProgram, tuple[QuantizedTensor, ...]]:
    """Convert the weights of `model` to `scheme` and trace it again.

    Args:
        model: As its source builds it; it is modified.
        program: Its exported program, which provides shapes and memory formats of inputs.
        scheme: `float16` or `int8_dynamic_int4_weight`.

    Returns:
        The ATen program, and all its integer tensors.

    Raises:
        LowerdeckError: the model cannot be traced with the scheme, or its linear layers do not divide into groups.
    """
    assert program.example_inputs is not None
    inputs = program.example_inputs[0]
    if scheme.name == "float16":
        model.half()
        inputs = tuple(value.half() if value.is_floating_point() else value for value in inputs)
    else:
        model = _with_grouped_weights(model, scheme)
    try:
        model.eval()  # as a statement: an eval() or train() of the user's may return nothing
        with torch.no_grad(), fast_graph_passes():
            retraced = trace(model, inputs, dynamic_shapes_of(program), memory_format_of(program))
    except LowerdeckError:
        raise
    except Exception as error:  # the user's code, which tracing runs, may raise anything
        raise LowerdeckError(
            f"{type(model).__name__} cannot be exported in {scheme.name} (quantization.scheme): "
            f"{type(error).__name__}: {error}{raised_at(error)}"
            f"{_FLOAT16_ADVICE if scheme.name == 'float16' else ''}"
        ) from error
    return retraced, quantized_tensors(retraced)


def _with_grouped_weights(model: nn.Module, scheme: QuantizationScheme) -> nn.Module:
    """`model` with 4-bit weights in its linear layers and 8-bit activations that are quantized at run time."""
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
    from torchao.quantization.granularity import PerGroup
    from torchao.utils import unwrap_tensor_subclass

    assert scheme.group_size is not None
    chosen = _chosen_layers(model, scheme)
    uneven = {path: layer.in_features for path, layer in chosen.items() if layer.in_features % scheme.group_size}
    if uneven:
        listed = ", ".join(f"{path} ({size})" for path, size in uneven.items())
        raise LowerdeckError(
            f"quantization.group_size: {scheme.group_size} does not divide the inputs of {listed}; choose a size that "
            "does, or name these layers in quantization.keep_float"
        )
    config = Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4,  # type: ignore[attr-defined]  # torch has no stub for it
        weight_granularity=PerGroup(scheme.group_size),
    )
    quantize_(model, config, filter_fn=lambda module, path: path in chosen)
    # Tensor subclasses would be pickled; their parts are plain tensors.
    plain: nn.Module = unwrap_tensor_subclass(model)
    return plain


def _chosen_layers(model: nn.Module, scheme: QuantizationScheme) -> dict[str, nn.Linear]:
    """The linear layers that no rule leaves float, by path."""
    classes = {path: f"{type(module).__module__}.{type(module).__qualname__}" for path, module in model.named_modules()}
    for rule in scheme.rules:
        check_modules_known(classes, "quantization.keep_float (or a rule with float32)", rule.modules, rule.types)
    # The output of an attention reads its weights itself, and PyTorch gives it this class so that none replaces them.
    layers = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear) and not isinstance(module, NonDynamicallyQuantizableLinear)
    }
    chosen = {
        path: layer
        for path, layer in layers.items()
        if not any(matches(with_outer_modules(path, classes), rule.modules, rule.types) for rule in scheme.rules)
    }
    if computed := [path for path, layer in chosen.items() if "weight" not in dict(layer.named_parameters())]:
        raise LowerdeckError(
            f"the weights of {', '.join(computed)} are computed from other parameters (e.g. by weight_norm), and "
            f"{scheme.name} quantizes weights that a layer stores; name these layers in quantization.keep_float, or "
            "remove the parametrization in the model's factory"
        )
    if not chosen:
        raise LowerdeckError(
            f"{type(model).__name__} has no linear layer to quantize, and {scheme.name} quantizes nothing else; "
            + ("keep_float names all of them" if layers else "choose another quantization")
        )
    return chosen
