"""Step quantize: exported program and observer state -> quantized exported program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from executorch.exir.passes.remove_unused_parameters_pass import remove_unused_parameters_pass
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

from lowerdeck.compat.fast_graph_passes import fast_graph_passes
from lowerdeck.compat.torchao import FOLD_TRAINED_BATCH_NORM, HISTOGRAM_SEARCH
from lowerdeck.contracts.quantization import ObserverState, QuantizedTensor
from lowerdeck.graph.dynamic_shapes import dynamic_shapes_of
from lowerdeck.graph.outputs import with_outputs_of
from lowerdeck.graph.state import without_hidden_writes
from lowerdeck.quantization.divisors import keep_divisors_in_float
from lowerdeck.quantization.explicit_state import with_buffers
from lowerdeck.quantization.histogram_search import searched_once, searched_range
from lowerdeck.quantization.logarithms import keep_logarithms_in_float
from lowerdeck.quantization.pt2e import prepare, restore_observers
from lowerdeck.quantization.quantized_tensors import quantized_tensors
from lowerdeck.quantization.ranges import constant_ranges, observed_modules

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torchao.quantization.pt2e.quantizer import Quantizer


def quantize(
    program: ExportedProgram, quantizer: Quantizer, state: ObserverState
) -> tuple[ExportedProgram, tuple[QuantizedTensor, ...]]:
    """Convert `program` with the ranges that calibration found.

    Returns:
        The quantized ATen program, and all its integer tensors.
    """
    prepared = prepare(program, quantizer)
    restore_observers(prepared, state)
    keep_divisors_in_float(prepared)
    keep_logarithms_in_float(prepared)
    assert program.example_inputs is not None
    with HISTOGRAM_SEARCH.active(searched_once(searched_range)):
        ranges, modules = {**state.ranges, **constant_ranges(prepared)}, observed_modules(prepared)
        with torch.no_grad(), fast_graph_passes(), FOLD_TRAINED_BATCH_NORM.active(_without_dead_code):
            converted = with_buffers(convert_pt2e(prepared), program)
            _make_dense(converted)
    with torch.no_grad(), fast_graph_passes():
        quantized = torch.export.export(converted, *program.example_inputs, dynamic_shapes=dynamic_shapes_of(program))
        quantized = with_outputs_of(without_hidden_writes(quantized), program)
    # The float weights are unused after conversion, but every later stage would store and read them.
    quantized = remove_unused_parameters_pass(quantized)
    return quantized, quantized_tensors(quantized, ranges, modules)


def _without_dead_code(module: torch.fx.GraphModule, *_: Any, **__: Any) -> torch.fx.GraphModule:
    """What is left of folding batch norms if none was trained together with its convolution (prepare_qat_pt2e)."""
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _make_dense(module: torch.fx.GraphModule) -> None:
    """Repeat the values of constants that were expanded: ExecuTorch stores no tensor with a stride of 0."""
    for tensor in (*module.parameters(), *module.buffers()):
        if 0 in tensor.stride():
            tensor.data = tensor.data.contiguous()
