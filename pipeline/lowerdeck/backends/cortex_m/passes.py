"""CortexMPassManager on an edge program, with the origin of every operator that it makes."""

from __future__ import annotations

import traceback
from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from executorch.backends.arm.common.annotation_meta import ArmAnnotationInfo
from executorch.backends.cortex_m.edge_compile_config import cortex_m_edge_compile_config
from executorch.backends.cortex_m.library import cmsis_nn
from executorch.backends.cortex_m.passes.aten_to_cortex_m_pass import AtenToCortexMPass
from executorch.backends.cortex_m.passes.cortex_m_pass_manager import CortexMPassManager, RemoveGetItemPass
from executorch.backends.cortex_m.passes.passes_utils import (
    get_activation_bounds,
    quantize_val,
    to_physical_order,
)
from executorch.backends.cortex_m.target_config import CortexM, CortexMTargetConfig
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.pass_base import ExportedProgramPassBase, ExportedProgramPassResult, ExportPass, PassResult
from executorch.exir.verification.verifier import EXIREdgeDialectVerifier

from lowerdeck.backends.cortex_m.filled import fill_with_integers
from lowerdeck.backends.cortex_m.options import Device
from lowerdeck.compat.arm import BOUNDS_OF_FUSED_ACTIVATION, CALL_EDGE_OPERATOR, ORDER_OF_PADDING
from lowerdeck.contracts.errors import is_about_no_operator
from lowerdeck.graph.nodes import operator_name

if TYPE_CHECKING:
    from torch.export import ExportedProgram

EDGE_CONFIG = cortex_m_edge_compile_config()
ORIGIN = "lowerdeck_origin"
"""Key of `node.meta` with the name of the node of the edge program that a node was made from."""
_VALUES_ALONE = {
    exir_ops.edge.aten.max_pool2d_with_indices.default: exir_ops.edge.aten.max_pool2d.default,
    exir_ops.edge.aten.max.dim: exir_ops.edge.aten.amax.default,
}
"""Operators that return indices, too, and what the passes take in their place."""
_ANNOTATION = ArmAnnotationInfo.CUSTOM_META_KEY


def _larger_or_smaller(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """What cortex_m's maximum and minimum return: ExecuTorch's is contiguous, so that passes lose the layout there.

    It is where elements are repeated, because the kernels read memory as contiguous.
    """
    if first.shape == second.shape or second.numel() == 1:
        return torch.empty_like(first)
    return first.new_empty(torch.broadcast_shapes(first.shape, second.shape))  # type: ignore[no-untyped-call]


for _name in ("maximum", "minimum"):
    torch.library.register_fake(f"cortex_m::{_name}", _larger_or_smaller, allow_override=True)


class PassFailedError(Exception):
    """A pass failed at one node."""

    def __init__(self, origin: str, cause: BaseException) -> None:
        super().__init__(origin)
        self.origin, self.cause = origin, cause
        """The node of the edge program, and what the pass raised."""


class RemoveUnreadIndices(ExportPass):  # type: ignore[misc]  # ExecuTorch is untyped
    """In place of RemoveGetItemPass, which fails on a max pooling whose indices are read; that is left here."""

    def call(self, graph_module: torch.fx.GraphModule) -> PassResult:
        """Replace operators of which only the values are read."""
        graph = graph_module.graph
        for node in [node for node in graph.nodes if node.target in _VALUES_ALONE]:
            if any(user.args[1] != 0 and user.users for user in node.users):
                continue
            first, second, *others = node.args
            dimensions = [second] if node.target == exir_ops.edge.aten.max.dim else second  # amax takes several
            with graph.inserting_before(node):
                made = graph.call_function(_VALUES_ALONE[node.target], (first, dimensions, *others), node.kwargs)
            made.meta = {**node.meta, "val": node.meta["val"][0]}
            for user in list(node.users):
                user.replace_all_uses_with(made)
                graph.erase_node(user)
            graph.erase_node(node)
        graph_module.recompile()
        return super().call(graph_module)


class AtenToCmsisNn(AtenToCortexMPass):  # type: ignore[misc]  # ExecuTorch is untyped
    """AtenToCortexMPass, which orders padding as the operand lies in memory when all operators are replaced."""

    def call(self, graph_module: torch.fx.GraphModule) -> PassResult:
        """Replace operators, with padding by dimension, and trace them."""
        self._DIALECT_SUBSTITUTIONS = AtenToCortexMPass._DIALECT_SUBSTITUTIONS  # a subclass gets an empty one
        with ORDER_OF_PADDING.active(lambda padding, _: padding):
            return super().call(graph_module)

    def call_operator(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], meta: Any) -> Any:
        """Order padding."""
        if op == exir_ops.edge.cortex_m.pad.default:
            operand, before, after, *value = args
            args = (operand, *(to_physical_order(list(each), operand.data) for each in (before, after)), *value)
        return super().call_operator(op, args, kwargs, meta)


_REPLACED = {RemoveGetItemPass: RemoveUnreadIndices, AtenToCortexMPass: AtenToCmsisNn}
"""ExecuTorch's passes and what is executed in their place."""


class ReplaceByCmsisNn(ExportedProgramPassBase):  # type: ignore[misc]  # ExecuTorch is untyped
    """Replaces quantized nodes by CMSIS-NN's operators."""

    def __init__(self, device: Device, refused: Collection[str]) -> None:
        """Describe the replacement.

        Args:
            device: The Cortex-M.
            refused: Origins of quantized nodes that stay as they are, between dequantize and quantize nodes.
        """
        isa = None if device.isa is None else getattr(cmsis_nn.Backend, device.isa.upper())
        self._target = CortexMTargetConfig(cpu=CortexM[device.cpu.upper()], isa=isa)
        self._explicit_layout = device.use_explicit_layout
        self._refused = refused

    def call(self, exported_program: ExportedProgram) -> ExportedProgramPassResult:
        """Replace the nodes.

        Raises:
            PassFailedError: a pass fails at a node that can be refused.
        """
        for node in exported_program.graph.nodes:
            if node.meta.get(ORIGIN) in self._refused:
                # Without it, the passes do not take the node for a quantized one.
                node.meta["custom"] = {
                    key: value for key, value in node.meta.get("custom", {}).items() if key != _ANNOTATION
                }
        fill_with_integers(exported_program.graph)
        manager = CortexMPassManager(
            _unverified(exported_program), target_config=self._target, use_explicit_layout=self._explicit_layout
        )
        manager.passes = [_REPLACED.get(each, each) for each in manager.passes]
        try:
            with _operators_of_one_type(), _activations_within_wider_ranges():
                return ExportedProgramPassResult(manager.transform(), True)
        except Exception as error:  # torch's pass manager raises plain exceptions in place of those of passes
            cause = error.__cause__ or error
            origin = _origin(cause)
            if origin is None or origin in self._refused or is_about_no_operator(cause):
                raise
            raise PassFailedError(origin, cause) from error


def _operators_of_one_type() -> AbstractContextManager[None]:
    """While the passes trace integers, give what an operator returns the type of its input, as CMSIS-NN's do."""
    call, replaced = CALL_EDGE_OPERATOR.original(), AtenToCortexMPass._DIALECT_SUBSTITUTIONS

    def call_with_one_type(operator: Any, *arguments: Any, **keywords: Any) -> Any:
        result = call(operator, *arguments, **keywords)
        is_of_aten = operator in replaced and operator._op.namespace == "aten"
        if is_of_aten and arguments[0].dtype in (torch.int8, torch.int16) and isinstance(result, torch.Tensor):
            return result.to(arguments[0].dtype)
        return result

    return CALL_EDGE_OPERATOR.active(call_with_one_type)


def _activations_within_wider_ranges() -> AbstractContextManager[None]:
    """Let CMSIS-NN's layers clamp at the bounds of an activation, wherever these lie among the integers."""
    validated = BOUNDS_OF_FUSED_ACTIVATION.original()

    def bounded(fusing: Any, node: torch.fx.Node, layer: torch.fx.Node) -> dict[str, Any] | None:
        found: dict[str, Any] | None = validated(fusing, node, layer)
        quantization = node.meta.get("output_qparams", {}).get(0)
        bounds = get_activation_bounds(node)
        if found is not None or quantization is None or bounds is None or "input_qparams" not in layer.meta:
            return found
        if node.target is exir_ops.edge.aten.hardsigmoid.default or not isinstance(quantization.scale, float):
            return None  # its line is computed by another scale and zero point; one scale for each channel
        values: dict[str, Any] = quantization._asdict()
        integers = (quantization.scale, quantization.zp, quantization.qmin, quantization.qmax)
        limits = {
            name: int(quantize_val(bound, *integers))
            for name, bound in zip(("qmin", "qmax"), bounds, strict=True)
            if bound is not None
        }
        return values | limits

    return BOUNDS_OF_FUSED_ACTIVATION.active(bounded)


def _unverified(program: ExportedProgram) -> ExportedProgram:
    """`program` with a verifier that accepts float operators on integers, which the passes leave for a while."""
    return torch.export.ExportedProgram(
        root=program.graph_module,
        graph=program.graph,
        graph_signature=program.graph_signature,
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=program.constants,
        verifiers=[EXIREdgeDialectVerifier(edge_compile_config=EDGE_CONFIG, class_only=True)],
    )


def is_annotated(node: torch.fx.Node) -> bool:
    """Whether the quantizer annotated `node`, so that the passes take it for a quantized one."""
    return bool(node.meta.get("custom", {}).get(_ANNOTATION, {}).get("quantized", False))


def is_replaced(node: torch.fx.Node) -> bool:
    """Whether `node` calls one of CMSIS-NN's operators."""
    return operator_name(node).startswith("cortex_m.")


def _origin(error: BaseException) -> str | None:
    """The origin of the node that a pass was working on, from its innermost local variable with such a node."""
    found: str | None = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for value in frame.f_locals.values():
            if isinstance(value, torch.fx.Node) and value.op == "call_function" and ORIGIN in value.meta:
                found = value.meta[ORIGIN]
    return found
