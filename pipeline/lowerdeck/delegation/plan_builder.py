"""Describes the nodes of an edge program for the delegation plan: tensors, MACs, module, source line, decision."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from executorch.exir.sym_util import eval_upper_bound

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.plan import PORTABLE, PlannedNode, PlannedTensor, Reason
from lowerdeck.delegation.exclusion import excluded_by, exclusion_reason
from lowerdeck.graph.macs import macs
from lowerdeck.graph.modules import module_path
from lowerdeck.graph.nodes import DELEGATION_TAG, DEQUANTIZE, KERNEL_LIBRARY, QUANTIZE, is_compute, operator_name
from lowerdeck.graph.source_lines import source_line

if TYPE_CHECKING:
    from torch.export import ExportedProgram


_FUSED_INTO_PRODUCER = (
    "getitem",
    *(f"aten.{name}.default" for name in ("relu", "hardtanh", "clamp", "sigmoid", "tanh", "leaky_relu")),
)
"""Operators that quantizers fuse with the preceding operator, in front of the quantize node of its result."""


GetReason = Callable[["torch.fx.Node"], "Reason | None"]
"""Returns why a processor does not compute a node."""


def planned_nodes(
    program: ExportedProgram, reason: GetReason, processor: str, fallback_reason: GetReason | None = None
) -> tuple[list[PlannedNode], tuple[str, ...]]:
    """Describe every operator of `program` in graph order, and name those whose results are outputs.

    Args:
        program: Edge program tagged by a partitioner.
        reason: Returns why a node is not tagged.
        processor: Who computes tagged nodes.
        fallback_reason: With a fallback, returns why it does not compute an untagged node either.

    Raises:
        LowerdeckError: a node is not delegated and has no reason, or the size of a tensor is unbounded.
    """
    describer = _NodeDescriber(program)
    nodes = [
        describer.planned(node, processor, *_reasons(node, reason, fallback_reason))
        for node in program.graph.nodes
        if node.op == "call_function"
    ]
    unexplained = [node.name for node in nodes if node.is_portable and node.reason is None]
    if unexplained:
        raise LowerdeckError(
            f"the backend leaves {len(unexplained)} nodes on the CPU without a reason: "
            f"{', '.join(unexplained[:5])}; its partitioner must tag every node, or Lowering.reasons must "
            "return a Reason"
        )
    outputs = [node.name for node in program.graph.output_node().all_input_nodes if node.op == "call_function"]
    return nodes, tuple(outputs)


def _reasons(
    node: torch.fx.Node, reason: GetReason, fallback_reason: GetReason | None
) -> tuple[Reason | None, Reason | None]:
    """`PlannedNode.reason` and `delegate_reason`."""
    tag, excluded = node.meta.get(DELEGATION_TAG), exclusion_reason(node)
    assert not (tag and excluded), f"{node.name} is delegated although {excluded}"
    if tag:
        return None, None
    is_on_library = KERNEL_LIBRARY in node.meta
    if fallback_reason is None:
        return (None if is_on_library else excluded or reason(node)), None
    return (None if is_on_library else fallback_reason(node)), excluded or reason(node)


class _NodeDescriber:
    """Properties of the nodes of one program, each computed once."""

    def __init__(self, program: ExportedProgram) -> None:
        signature = program.graph_signature
        written = set(signature.buffers_to_mutate.values())
        buffers = (name for name, buffer in signature.inputs_to_buffers.items() if buffer not in written)
        self._constants = {*signature.inputs_to_parameters, *buffers, *signature.inputs_to_lifted_tensor_constants}
        self._tensors: dict[torch.fx.Node, tuple[PlannedTensor, ...]] = {}
        self._operators = {node: operator_name(node) for node in program.graph.nodes if node.op == "call_function"}
        self._quantized = self._quantized_nodes()
        self._source_line = lru_cache(maxsize=None)(source_line)  # nodes of one operator have the same trace

    def planned(
        self, node: torch.fx.Node, processor: str, reason: Reason | None, delegate_reason: Reason | None
    ) -> PlannedNode:
        """Describe `node`; `processor` computes it if it is delegated, `reason` is None unless it is left portable."""
        return PlannedNode(
            name=node.name,
            operator=self._operators[node],
            compute=is_compute(node),
            partition=node.meta.get(DELEGATION_TAG),
            module=module_path(node) or self._module_of_neighbour(node),
            source=self._source_line(node.meta.get("stack_trace")),
            inputs=self._inputs(node),
            outputs=self._outputs(node),
            macs=self._macs(node),
            is_quantized=node in self._quantized and is_compute(node),
            processor=processor if DELEGATION_TAG in node.meta else node.meta.get(KERNEL_LIBRARY, PORTABLE),
            reason=reason,
            delegate_reason=delegate_reason,
            excluded_by=excluded_by(node),
        )

    def _module_of_neighbour(self, node: torch.fx.Node) -> str:
        """The module whose tensor `node` quantizes or dequantizes; quantizers do not record it."""
        operator = self._operators[node]
        if operator.startswith(DEQUANTIZE):
            return next(filter(None, map(module_path, node.users)), "")
        if operator.startswith(QUANTIZE):
            return module_path(node.all_input_nodes[0])
        return ""

    def _outputs(self, node: torch.fx.Node) -> tuple[PlannedTensor, ...]:
        """The output tensors of `node`, or the tensor of a placeholder."""
        if node not in self._tensors:
            value = node.meta.get("val")
            items = value if isinstance(value, (tuple, list)) else (value,)
            tensors = (self._tensor(node, item) for item in items if isinstance(item, torch.Tensor))
            self._tensors[node] = tuple(tensors)
        return self._tensors[node]

    def _inputs(self, node: torch.fx.Node) -> tuple[PlannedTensor, ...]:
        """The input tensors of `node`, each once; a getitem reads one of several results."""
        if self._operators[node] == "getitem":
            source, index = node.args
            assert isinstance(source, torch.fx.Node)
            assert isinstance(index, int)
            outputs = self._outputs(source)
            return outputs[index : index + 1]
        return tuple(tensor for source in node.all_input_nodes for tensor in self._outputs(source))

    def _tensor(self, node: torch.fx.Node, value: torch.Tensor) -> PlannedTensor:
        shape = tuple(size if isinstance(size, int) else _largest(size, node) for size in value.shape)
        return PlannedTensor(
            source=node.name,
            shape=shape,
            dtype=str(value.dtype).removeprefix("torch."),
            size_bytes=value.dtype.itemsize * math.prod(shape),
            is_constant=node.name in self._constants,
            is_dynamic=any(not isinstance(size, int) for size in value.shape),
        )

    def _macs(self, node: torch.fx.Node) -> int:
        def shape_of(argument: Any) -> Any:
            if not isinstance(argument, torch.fx.Node):
                return argument
            tensors = self._outputs(argument)
            return tensors[0].shape if tensors else ()

        outputs = self._outputs(node)
        return macs(self._operators[node], list(map(shape_of, node.args)), outputs[0].shape) if outputs else 0

    def _quantized_nodes(self) -> set[torch.fx.Node]:
        """The nodes that compute on quantized values; see PlannedNode.is_quantized."""
        requantized: set[torch.fx.Node] = set()
        fused: set[torch.fx.Node] = set()  # requantized nodes that are fused into their producer
        for node in reversed(self._operators):
            users = [user for user in node.users if user in self._operators]
            if users and all(user in fused or self._operators[user].startswith(QUANTIZE) for user in users):
                requantized.add(node)
                if self._operators[node] in _FUSED_INTO_PRODUCER:
                    fused.add(node)
        found: set[torch.fx.Node] = set()
        for node in self._operators:
            sources = [source for source in node.all_input_nodes if source in self._operators]
            dequantized = [source for source in sources if self._operators[source].startswith(DEQUANTIZE)]
            has_weight = any(source.all_input_nodes[0].name in self._constants for source in dequantized)
            takes_integers = len(dequantized) == len(sources) > 0 and (has_weight or node in requantized)
            if takes_integers or (node in fused and found.issuperset(sources)):
                found.add(node)
        return found


def _largest(size: torch.SymInt, node: torch.fx.Node) -> int:
    try:
        return int(eval_upper_bound(size))
    except RuntimeError as error:
        raise LowerdeckError(
            f"the size {size} of a tensor at {node.name} has no upper bound, so that no memory can be planned for it; "
            "model.dynamic_shapes states one for inputs, torch._check in the model for what depends on data"
        ) from error
