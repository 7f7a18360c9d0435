"""PT2E preparation, and the state of its observers as plain tensors.

torch.export.save cannot store a prepared model, and everything else needs pickle. Calibration only changes the buffers
of observers, so these are stored as tensors and restored in a model that another process prepares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
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
    hide_exact_divisions,
    leave_floats_between_integers,
    leave_other_types,
    show_exact_divisions,
)
from lowerdeck.quantization.limits import observe_finite_limits
from lowerdeck.quantization.masked_values import KeepingMasks
from lowerdeck.quantization.masks import narrow_masked_ranges
from lowerdeck.quantization.matrix_products import use_linear
from lowerdeck.quantization.shared_layers import separate_shared_layers

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def prepare(program: ExportedProgram, quantizer: Quantizer) -> torch.fx.GraphModule:
    """`program` with the observers that `quantizer` requires; its state is explicit, see explicit_state.py.

    The result has parameters of its own: Arm's quantizer writes the product of weights and a factor into the weights.

    Raises:
        LowerdeckError: the quantizer annotated nothing, so the converted program would silently stay float.
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
    if not any(True for _ in _observers(prepared)):
        operators = Counter(str(node.target) for node in program.graph.nodes if node.op == "call_function")
        listed = ", ".join(f"{count} {name}" for name, count in operators.most_common(12))
        values = (node.meta.get("val") for node in program.graph.nodes)
        dtypes = {value.dtype for value in values if isinstance(value, torch.Tensor) and value.is_floating_point()}
        by, hint = library_of(quantizer), ""
        if dtypes and torch.float32 not in dtypes:
            named = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
            hint = f" It computes in {named}, and float32 is what is quantized: call `.float()` in the model's factory."
        if by is None:  # ours, which gives modules to several of the libraries'
            by, hint = "the configuration", f"{hint} Keep less in float (quantization.keep_float and rules)."
        raise LowerdeckError(
            f"{by} annotated none of the model's nodes, so nothing would be quantized. The model has: {listed}. Choose "
            f"`quantization: float32` or a target that quantizes these operators.{hint}"
        )
    return prepared


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
    for name, module in prepared.named_modules():
        if isinstance(module, ObserverBase):
            yield name, module


def _layout(prepared: torch.fx.GraphModule) -> str:
    return digest([[name, type(observer).__name__] for name, observer in _observers(prepared)])
