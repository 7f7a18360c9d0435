"""Decides which nodes of an edge program CMSIS-NN computes, by trying the passes on a copy of the program."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from executorch.exir.backend.partitioner import Partitioner, PartitionResult
from executorch.exir.pass_manager import ExportedProgramPassManager

from lowerdeck.backends.cortex_m.agreement import CONSTANT, give_mark, mark_quantized
from lowerdeck.backends.cortex_m.layouts import settle_kernels, settle_layouts
from lowerdeck.backends.cortex_m.options import Device
from lowerdeck.backends.cortex_m.passes import (
    EDGE_CONFIG,
    ORIGIN,
    PassFailedError,
    ReplaceByCmsisNn,
    is_annotated,
    is_replaced,
)
from lowerdeck.backends.cortex_m.quantizer import is_checked
from lowerdeck.backends.cortex_m.reasons import (
    Reasons,
    left_in_float,
    not_on_integers,
    refusals,
    unit_of,
)
from lowerdeck.backends.cortex_m.remainder import remainder
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.plan import CMSIS_NN, Reason, ReasonCode
from lowerdeck.delegation.exclusion import Exclusion, excluded_by, matches_aten_node, missing_kernel_error
from lowerdeck.graph import library_errors
from lowerdeck.graph.nodes import DEQUANTIZE, KERNEL_LIBRARY, QUANTIZE, constant_names, operator_name
from lowerdeck.graph.preserved_operators import can_decompose

if TYPE_CHECKING:
    from executorch.exir import EdgeProgramManager
    from torch.export import ExportedProgram

_PRESERVED = tuple(op for op in EDGE_CONFIG.preserve_ops if not op._schema.is_mutable)
"""Operators that the passes replace as a whole. An exported program has none that works in place."""


_BEHIND_A_LAYER = ("aten.hardsigmoid.default", "aten.hardswish.default")
"""Operators that the passes replace only behind a convolution or linear layer that nothing else reads."""
_LAYERS = ("aten.conv2d", "aten.convolution", "aten.linear", "aten.conv1d")


class CmsisNnPartitioner(Partitioner):  # type: ignore[misc]  # ExecuTorch is untyped
    """Delegates nothing, and marks the nodes that CMSIS-NN computes instead of portable kernels."""

    def __init__(self, device: Device, options: Exclusion) -> None:
        super().__init__()
        self._device, self._options = device, options
        self._refused: Mapping[str, Reason] = {}
        self._assigned: frozenset[str] = frozenset()
        self._reasons: Reasons | None = None

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Mark nodes with KERNEL_LIBRARY, and record why the others are left to portable kernels."""
        graph = exported_program.graph
        _mark_origins(exported_program)
        left = remainder(exported_program)
        if left is not exported_program:
            marked = set(mark_quantized(left.graph))
            for node in graph.nodes:
                if node.name in marked:
                    give_mark(node)
        replaced = self._tried(left)
        self._assigned = _assigned(left.graph, replaced.graph)
        for node in left.graph.nodes:
            if node.name in self._refused and can_decompose(node):
                raise missing_kernel_error(node, excluded_by(node))
        for node in graph.nodes:
            if node.name in self._assigned:
                node.meta[KERNEL_LIBRARY] = CMSIS_NN
        self._reasons = Reasons(self._device, self._refused)
        return PartitionResult(tagged_exported_program=exported_program, partition_tags={})

    def refused(self, program: ExportedProgram) -> frozenset[str]:
        """Names of nodes of an edge program that CMSIS-NN does not compute, whatever the options exclude."""
        _mark_origins(program)
        self._tried(program)
        return frozenset(self._refused)

    def reason(self, node: torch.fx.Node) -> Reason:
        """Return why `node` is left to portable kernels; valid after `partition`."""
        assert self._reasons is not None, "ExecuTorch partitions first"
        return self._reasons.reason(node)

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[Any], Callable[[torch.fx.Node], bool]]:
        """Preserve quantized operators that the passes replace; others are decomposed, because kernels lack some."""
        return list(_PRESERVED), lambda node: is_checked(node) and self._is_replaceable(node)

    def _is_replaceable(self, node: torch.fx.Node) -> bool:
        """Whether the passes replace `node`, and with it the layer that they compute it together with, if any."""
        if matches_aten_node(node, self._options):
            return False
        if operator_name(node) not in _BEHIND_A_LAYER:
            return True
        layer = _layer_before(node)
        return layer is not None and is_annotated(layer) and not matches_aten_node(layer, self._options)

    def replace_kernels(self, manager: EdgeProgramManager) -> EdgeProgramManager:
        """Replace the nodes that `partition` marked.

        Raises:
            LowerdeckError: the passes replace other nodes than those.
        """
        before = {node.meta.get(ORIGIN) for node in manager.exported_program().graph.nodes}
        replaced = manager.transform(
            ExportedProgramPassManager([ReplaceByCmsisNn(self._device, self._refused)]), EDGE_CONFIG
        )
        made = {node.meta.get(ORIGIN) for node in replaced.exported_program().graph.nodes if is_replaced(node)}
        if other := made & before - self._assigned:
            raise LowerdeckError(
                f"CortexMPassManager replaced {', '.join(sorted(filter(None, other)))} in convert, and not in "
                "partition; `dvc repro -f partition` plans it again"
            )
        # A tensor with one channel is contiguous and channels-last; only now is it known what it was taken for.
        settled = replaced.transform([settle_layouts], EDGE_CONFIG)
        return settled.transform([settle_kernels(settled.exported_program())], EDGE_CONFIG)

    def _tried(self, program: ExportedProgram) -> ExportedProgram:
        """A replaced copy of `program`; what must not be replaced, and nodes at which a pass fails, are refused."""
        self._refused = refusals(program, Reasons(self._device, {}))
        while True:
            try:
                tried = ReplaceByCmsisNn(self._device, self._refused)(_copy_without_values(program))
            except PassFailedError as error:
                failed = next(node for node in program.graph.nodes if node.name == error.origin)
                message = f"CortexMPassManager fails on it: {library_errors.described(error.cause)}"
                self._refuse(failed, Reason(code=ReasonCode.NOT_COMPILED, message=message))
                continue
            replaced: ExportedProgram = tried.exported_program
            wrong = set(not_on_integers(replaced.graph, program.graph)) - self._refused.keys()
            if not wrong:
                return replaced
            for node in [node for node in program.graph.nodes if node.name in wrong]:
                self._refuse(node, left_in_float(node))

    def _refuse(self, node: torch.fx.Node, reason: Reason) -> None:
        """Leave `node`, and what passes floats to or from it, as it is."""
        self._refused = {**self._refused, **{member.name: replace(reason, node=node.name) for member in unit_of(node)}}


def _mark_origins(program: ExportedProgram) -> None:
    """Let the passes recognize the nodes of an edge program in what they make of it."""
    constants = constant_names(program)
    for node in program.graph.nodes:
        node.meta[ORIGIN] = node.name
        node.meta.pop(KERNEL_LIBRARY, None)
        if node.name in constants:
            node.meta[CONSTANT] = True


def _layer_before(node: torch.fx.Node) -> torch.fx.Node | None:
    """The convolution or linear layer that `node` reads, through conversions and a clamp, if nothing else does."""
    current = node.all_input_nodes[0]
    while len(current.users) == 1 and current.all_input_nodes:
        name = operator_name(current)
        if name.startswith(_LAYERS):
            return current
        if not name.startswith((*QUANTIZE, *DEQUANTIZE, "aten.clamp.")):
            return None
        current = current.all_input_nodes[0]
    return None


def _copy_without_values(program: ExportedProgram) -> ExportedProgram:
    """A copy of `program` whose constants consist of ones.

    ExecuTorch calls partitioners without the values of constants. What the passes decide does not depend on them:
    weights are stored in another order, and the scales of their channels become multipliers.
    """

    def ones(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        made = torch.ones((), dtype=value.dtype).expand(value.shape)
        is_parameter = isinstance(value, torch.nn.Parameter)
        return torch.nn.Parameter(made, requires_grad=False) if is_parameter else made

    module = copy.deepcopy(program.graph_module)
    return torch.export.ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=copy.deepcopy(program.graph_signature),
        state_dict={name: ones(value) for name, value in program.state_dict.items()},
        range_constraints=dict(program.range_constraints),
        module_call_graph=list(program.module_call_graph),
        example_inputs=None,
        constants={name: ones(value) for name, value in program.constants.items()},
        verifiers=[program.verifier],
    )


def _assigned(graph: torch.fx.Graph, replaced: torch.fx.Graph) -> frozenset[str]:
    """Names of the nodes of `graph` that CMSIS-NN computes in `replaced`.

    Nodes that the passes fold belong to another: an operand's dequantize node to what reads it, a result's quantize
    node, a fused activation and an unpacked result to what computes it.
    """
    kept: dict[str, bool] = {}
    for node in replaced.nodes:
        if node.op == "call_function" and (origin := node.meta.get(ORIGIN)) is not None:
            kept[origin] = kept.get(origin, True) and is_replaced(node)
    found = dict(kept)
    folded = [node for node in graph.nodes if node.op == "call_function" and node.name not in kept]
    for node in folded:  # in order, so that chains of folded nodes follow the first
        source = node.all_input_nodes[0] if node.all_input_nodes else None
        if not operator_name(node).startswith(DEQUANTIZE) and source is not None:
            found[node.name] = found.get(source.name, False)
    for node in reversed(folded):
        if operator_name(node).startswith(DEQUANTIZE):
            found[node.name] = bool(node.users) and all(found.get(user.name, False) for user in node.users)
    return frozenset(name for name, is_assigned in found.items() if is_assigned)
