"""Determines why NXP's partitioner left a node on the CPU, by running its checks again, in its order.

The partitioner records nothing. `NeutronSupportedOperators` checks a node, or the compute node that it surrounds, for
an exclusion, a converter, a quantize/dequantize cluster and the converter's own checks; `validate_partitioning_result`
then withdraws invalid partitions. Import this after `sdk.provide_sdk`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from executorch.backends.nxp.neutron_partitioner import (
    NXP_DO_NOT_DELEGATE,
    NeutronPartitioner,
    QDQClusterRecognizer,
    supported_ops,
)

from lowerdeck.compat import nxp
from lowerdeck.contracts.plan import Reason, ReasonCode
from lowerdeck.delegation.exclusion import exclusion_reason, is_excluded
from lowerdeck.delegation.rejections.rejection import explain_rejection
from lowerdeck.graph.nodes import is_compute

if TYPE_CHECKING:
    import torch

_QUANTIZED = "NeutronSupportedOperators._is_node_quantized"
_CLUSTER = "NeutronSupportedOperators._is_node_supported_non_compute"
_PARTITIONING = "CapabilityBasedPartitioner.propose_partitions"
Reasons = Callable[["torch.fx.Node"], Reason | None]


class RejectionRecorder:
    """Records the partitioner's decisions and returns the reason for each node on the CPU."""

    def __init__(self) -> None:
        self._withdrawn: dict[torch.fx.Node, Reason] = {}
        self._checks: Any = None

    @contextmanager
    def recording(self) -> Iterator[Reasons]:
        """Record the partitioner's decisions; the value returns the reason of a node that is not delegated."""
        create = nxp.SUPPORTED_OPERATORS.original()

        def create_and_keep(*arguments: Any) -> Any:
            self._checks = create(*arguments)
            return self._checks

        with (
            nxp.SUPPORTED_OPERATORS.active(create_and_keep),
            nxp.CONTAINS_COMPUTE_NODES.active(self._recording_contains_compute_nodes()),
            nxp.VALIDATE_PARTITIONING.active(self._recording_validation()),
            nxp.WARNING.active(nxp.told_once(nxp.WARNING.original())),
        ):
            yield self.reason

    def reason(self, node: torch.fx.Node) -> Reason | None:
        """Return why `node` is not delegated."""
        recognizer, cluster = QDQClusterRecognizer, self._checks.qdq_clusters.get(node.meta.get("cluster"))
        if recognizer.is_quant_node(node) or recognizer.is_dequant_node(node) or recognizer.is_auxiliary_node(node):
            if cluster is None:
                return _outside_cluster_reason(node)
            if cluster.compute_node is not node:
                return self._reason_of_member(node, cluster.compute_node)
        return self._reason_of_compute(node)

    def _reason_of_member(self, node: torch.fx.Node, compute: torch.fx.Node) -> Reason:
        """The reason of a node whose cluster's compute node decides."""
        reason = self._reason_of_compute(compute)
        if reason.code is ReasonCode.PARTITIONING and reason.check == _PARTITIONING:
            return reason  # supported by itself
        if reason.code in (ReasonCode.EXCLUDED, ReasonCode.WRONG_RESULT, ReasonCode.NOT_COMPILED):
            named = reason.node or compute.name
            message = f"in one quantize/dequantize cluster with {named}, which is excluded"
            return Reason(code=reason.code, message=message, check=_CLUSTER, values=reason.values, node=named)
        message = f"follows {compute.name}, which stays on the CPU ({reason.code})"
        return Reason(code=ReasonCode.NEIGHBOUR, message=message, check=_CLUSTER, node=compute.name)

    def _reason_of_compute(self, node: torch.fx.Node) -> Reason:
        cluster = self._checks.qdq_clusters.get(node.meta.get("cluster"))
        excluded = exclusion_reason(node)
        if excluded is not None:
            return excluded
        members = cluster.ops if cluster is not None else ()
        named = min((member for member in members if is_excluded(member)), key=lambda member: member.name, default=None)
        if node.meta.get(NXP_DO_NOT_DELEGATE) and named is not None:
            reason = exclusion_reason(named)
            assert reason is not None, "an excluded node has a reason"
            message = f"in one quantize/dequantize cluster with {named.name}, which is excluded"
            return Reason(code=reason.code, message=message, check=_CLUSTER, values=reason.values, node=named.name)
        if node in self._withdrawn:
            return self._withdrawn[node]
        converter = supported_ops.get(node.target)
        if converter is None:
            return Reason(code=ReasonCode.NO_CONVERTER, message="no converter for this operator", check="supported_ops")
        if not self._checks._is_node_quantized(node):
            return _not_quantized_reason(node)
        rejection = self._converter_rejection(converter, node)
        return rejection or Reason(
            code=ReasonCode.PARTITIONING, message="supported, but left out of all partitions", check=_PARTITIONING
        )

    def _converter_rejection(self, converter: Any, node: torch.fx.Node) -> Reason | None:
        """Run the three checks of `converter` in the order of NodeConverter.is_supported."""
        checks = self._checks
        mapping, options = checks.parameters_mapping, checks.custom_delegation_options
        checks_in_order = (
            (converter._node_format_is_supported, (node,), ReasonCode.CONSTRAINT),
            (converter._is_supported_in_IR, (node, mapping, options), ReasonCode.CONSTRAINT),
            (
                converter._is_supported_on_target,
                (node, checks.neutron_target_spec, mapping, options),
                ReasonCode.TARGET_CONSTRAINT,
            ),
        )
        for check, arguments, code in checks_in_order:
            rejection = explain_rejection(check, *arguments)
            if rejection is not None:
                return rejection.reason(f"{converter.__name__}.{check.__name__}", code)
        return None

    def _recording_contains_compute_nodes(self) -> Callable[[Any, Any], bool]:
        """Wrap NeutronPartitioner's static method to record partitions withdrawn because they have no effect."""
        contains_compute = nxp.CONTAINS_COMPUTE_NODES.original()

        def contains_compute_nodes(partition: Any, mapping: Any) -> bool:
            computes: bool = contains_compute(partition, mapping)
            if not computes:
                nodes = [node.name for node in partition.nodes if is_compute(node)]
                reason = Reason(
                    code=ReasonCode.NO_OP_PARTITION,
                    message=f"its partition has no effect on the NPU: {', '.join(nodes)}",
                    check="NeutronPartitioner._partition_contains_compute_nodes",
                    values={"partition": nodes},
                )
                self._withdrawn |= dict.fromkeys(partition.nodes, reason)
            return computes

        return contains_compute_nodes

    def _recording_validation(self) -> Callable[[NeutronPartitioner, Any, Any, Any, Any], bool]:
        """Wrap NeutronPartitioner's method to record why nodes of formed partitions are withdrawn."""
        validate = nxp.VALIDATE_PARTITIONING.original()

        def validate_partitioning_result(
            partitioner: NeutronPartitioner, graph: Any, partitions: Any, options: Any, mapping: Any
        ) -> bool:
            valid: bool = validate(partitioner, graph, partitions, options, mapping)
            arguments = (partitions, options, partitioner.neutron_target_spec, mapping)
            for node in {} if valid else {node: None for partition in partitions for node in partition.nodes}:
                withdrawn = node.meta.get(NXP_DO_NOT_DELEGATE, False) and node.target in supported_ops
                if withdrawn and node not in self._withdrawn:
                    self._withdrawn[node] = _partition_rejection(supported_ops[node.target], node, arguments)
            return valid

        return validate_partitioning_result


def _partition_rejection(converter: Any, node: torch.fx.Node, arguments: tuple[Any, ...]) -> Reason:
    """The reason of a node that its converter refuses in the formed partition."""
    rejection = explain_rejection(converter.supports_partitioning_result, node, *arguments)
    return Reason(
        code=ReasonCode.PARTITIONING,
        message=rejection.message if rejection else "its converter does not take it in its partition",
        check=f"{converter.__name__}.supports_partitioning_result",
        values=rejection.values if rejection else {},
    )


def _outside_cluster_reason(node: torch.fx.Node) -> Reason:
    """The reason of a quantize, dequantize or auxiliary node without a compute node."""
    if is_compute(node):
        return _not_quantized_reason(node)
    neighbours = list(node.users) if QDQClusterRecognizer.is_dequant_node(node) else node.all_input_nodes
    computing = [other.name for other in neighbours if is_compute(other)]
    if computing:
        message = f"belongs to {computing[0]}, which is in no quantize/dequantize cluster"
        return Reason(code=ReasonCode.NEIGHBOUR, message=message, check=_QUANTIZED, node=computing[0])
    neighbour = neighbours[0].name if neighbours else ""
    message = f"only converts between number formats, beside {neighbour or 'nothing'}"
    return Reason(code=ReasonCode.BOUNDARY, message=message, check=_QUANTIZED, node=neighbour)


def _not_quantized_reason(node: torch.fx.Node) -> Reason:
    """The reason of a compute node in no quantize/dequantize cluster: its unquantized neighbours."""
    recognizer = QDQClusterRecognizer()

    def produces_unquantized(source: torch.fx.Node) -> bool:
        if recognizer.is_auxiliary_node(source):
            return not recognizer.get_qdq_cluster_input_part(source)
        return not recognizer.is_dequant_node(source)

    def consumes_unquantized(user: torch.fx.Node) -> bool:
        if recognizer.is_auxiliary_node(user):
            return not recognizer.get_qdq_cluster_output_part(user)
        return not recognizer.is_quant_node(user)

    sources = [source.name for source in node.all_input_nodes if produces_unquantized(source)]
    consumers = [user.name for user in node.users if consumes_unquantized(user)]
    said = [f"takes {', '.join(sources)} without a dequantize"] if sources else []
    said += [f"gives {', '.join(consumers)} its result without a quantize"] if consumers else []
    message = "not quantized, in no quantize/dequantize cluster" + (f": {' and '.join(said)}" if said else "")
    values: dict[str, object] = {"unquantized_inputs": sources, "unquantized_users": consumers}
    return Reason(code=ReasonCode.NOT_QUANTIZED, message=message, check=_QUANTIZED, values=values)
