"""PT2E preparation, and the state of its observers as plain tensors.

torch.export.save cannot store a prepared model, and everything else needs pickle. Calibration only changes the buffers
of observers, so these are stored as tensors and restored in a model that another process prepares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torchao.quantization.pt2e import ObserverBase
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e
from torchao.quantization.pt2e.quantizer import Quantizer

from lowerdeck.compat.fast_graph_passes import fast_graph_passes
from lowerdeck.compat.pytorch import FAKE_CONSTANT
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.quantization import ObserverState
from lowerdeck.fingerprints.digests import digest
from lowerdeck.quantization.explicit_state import without_buffers
from lowerdeck.quantization.integers import (
    CASTS,
    hide_exact_divisions,
    leave_floats_between_integers,
    leave_other_types,
    show_exact_divisions,
)
from lowerdeck.quantization.limits import observe_finite_limits
from lowerdeck.quantization.masked_values import KeepingMasks
from lowerdeck.quantization.masks import narrow_masked_ranges
from lowerdeck.quantization.matrix_products import use_linear
from lowerdeck.quantization.ranges import observer_nodes
from lowerdeck.quantization.shared_layers import LAYERS, separate_shared_layers

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

_NOT_COMPUTING = (*CASTS, torch.ops.aten._assert_tensor_metadata.default)


def prepare(program: ExportedProgram, quantizer: Quantizer) -> torch.fx.GraphModule:
    """`program` with the observers that `quantizer` requires; its state is explicit, see explicit_state.py.

    The result has parameters of its own: Arm's quantizer writes the product of weights and a factor into the weights.

    Raises:
        LowerdeckError: nothing that computes would be quantized, so the converted program would silently stay float.
    """
    module = without_buffers(program)
    replace_parameters(module, dict(module.named_parameters()))
    use_linear(module)
    separate_shared_layers(module)
    trained = program.graph_signature.parameters
    known = hide_exact_divisions(module, trained)
    for node in module.graph.nodes:
        if node.op == "call_function":
            # NeutronQuantizer groups nodes by the last entry of source_fn_stack, which only strict export adds.
            node.meta.setdefault("source_fn_stack", [(node.name, node.target)])
    with fast_graph_passes(), FAKE_CONSTANT.active(_with_known_sizes(FAKE_CONSTANT.original())):
        prepared: torch.fx.GraphModule = prepare_pt2e(module, KeepingMasks(quantizer))
    leave_other_types(prepared)
    show_exact_divisions(prepared)
    leave_floats_between_integers(prepared, trained, known)
    narrow_masked_ranges(prepared)
    observe_finite_limits(prepared)
    if not _quantizes(prepared):
        raise LowerdeckError(_nothing_quantized(program, quantizer))
    return prepared


def _quantizes(prepared: torch.fx.GraphModule) -> bool:
    """Whether observers are where something is computed, and not only where inputs and outputs change their type."""
    around = (each for node in observer_nodes(prepared) for each in (*node.all_input_nodes, *node.users))
    return any(node.op == "call_function" and node.target not in _NOT_COMPUTING for node in around)


def _nothing_quantized(program: ExportedProgram, quantizer: Quantizer) -> str:
    """Why nothing of `program` would be quantized, and the ways out."""
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    listed = ", ".join(f"{count} {name}" for name, count in Counter(str(node.target) for node in nodes).most_common(12))
    by, hint, of_type = library_of(quantizer), "", ""
    everywhere = _float_types(program.graph.nodes)
    computing = _float_types(node for node in nodes if node.target in LAYERS) or everywhere
    if computing and torch.float32 not in computing:
        named = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in computing))
        whose = "It computes" if torch.float32 not in everywhere else "Its layers compute"
        of_type = " in float32"
        hint = f" {whose} in {named}, and float32 is what is quantized: call `.float()` in the model's factory"
        hint += "." if torch.float32 not in everywhere else f", and leave out what casts to {named}."
    if by is None:  # ours, which gives modules to several of the libraries'
        by, hint = "the configuration", f"{hint} Keep less in float (quantization.keep_float and rules)."
    return (
        f"{by} annotated none of the model's nodes{of_type}, so nothing would be quantized. The model has: {listed}. "
        f"Choose `quantization: float32` or a target that quantizes these operators.{hint}"
    )


def _float_types(nodes: Iterable[Node]) -> set[torch.dtype]:
    values = (node.meta.get("val") for node in nodes)
    return {value.dtype for value in values if isinstance(value, torch.Tensor) and value.is_floating_point()}


def library_of(quantizer: Quantizer) -> str | None:
    """The library's quantizer that ours changes, by the name in its documentation; None where ours combines several."""
    package = __name__.partition(".")[0]
    kind = next(kind for kind in type(quantizer).__mro__ if kind.__module__.partition(".")[0] != package)
    return None if kind is Quantizer else kind.__name__


def _with_known_sizes(from_tensor: Callable[..., Any]) -> Callable[..., Any]:
    def with_known_sizes(mode: Any, tensor: torch.Tensor, **options: Any) -> Any:
        if options.get("symbolic_context") is None:
            options["static_shapes"] = True
        return from_tensor(mode, tensor, **options)

    return with_known_sizes


def observer_state(prepared: torch.fx.GraphModule) -> ObserverState:
    """The buffers of all observers of a calibrated model."""
    tensors = {
        f"{name}.{key}": buffer.detach().clone().contiguous()
        for name, observer in _observers(prepared)
        for key, buffer in observer.named_buffers(recurse=False)
    }
    return ObserverState(tensors=tensors, layout=_layout(prepared))


def restore_observers(prepared: torch.fx.GraphModule, state: ObserverState) -> None:
    """Restore the observer state and the trained weights, if any, in a freshly prepared model.

    The buffers are assigned, because load_state_dict expects the shapes of observers that have seen data, and resets
    `eps` where the dict lacks version metadata.

    Raises:
        LowerdeckError: the state belongs to another model, quantizer or version.
    """
    if _layout(prepared) != state.layout:
        raise LowerdeckError(
            "the observers of build/calibrate do not belong to this model and quantizer; `dvc repro -f calibrate` "
            "makes them again"
        )
    for name, observer in _observers(prepared):
        for key, _ in list(observer.named_buffers(recurse=False)):
            setattr(observer, key, state.tensors[f"{name}.{key}"].clone())
    replace_parameters(prepared, state.trained)


def replace_parameters(prepared: torch.fx.GraphModule, values: Mapping[str, torch.Tensor]) -> None:
    """Replace the parameters that a prepared model shares with its program by copies of `values`, by name.

    Names that share a parameter continue to do so.
    """
    names_of: dict[torch.nn.Parameter, list[str]] = {}
    for name, parameter in prepared.named_parameters(remove_duplicate=False):
        names_of.setdefault(parameter, []).append(name)
    for names in names_of.values():
        value = next((values[name] for name in names if name in values), None)
        if value is None:
            continue
        copy = torch.nn.Parameter(value.detach().clone(), requires_grad=value.is_floating_point())
        for name in names:
            owner, _, key = name.rpartition(".")
            prepared.get_submodule(owner).register_parameter(key, copy)


def _observers(prepared: torch.fx.GraphModule) -> Iterator[tuple[str, Any]]:
    """Observers that the graph calls, alone or as part of a FakeQuantize, by their first names."""
    calls = prepared.graph.find_nodes(op="call_module")
    called = {part for node in calls for part in prepared.get_submodule(str(node.target)).modules()}
    for name, module in prepared.named_modules():
        if isinstance(module, ObserverBase) and module in called:
            yield name, module


def _layout(prepared: torch.fx.GraphModule) -> str:
    return digest([[name, type(observer).__name__] for name, observer in _observers(prepared)])
