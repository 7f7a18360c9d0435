"""Replacements in ExecuTorch's NXP backend, whose import requires `eiq_neutron_sdk`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from lowerdeck.compat.replacement import Replacement

_PARTITIONER = "executorch.backends.nxp.neutron_partitioner"
_MANAGER = "executorch.backends.nxp.backend.neutron_converter_manager"

SUPPORTED_OPERATORS = Replacement(
    target=f"{_PARTITIONER}:NeutronSupportedOperators",
    reason="The partitioner stores neither reasons nor the object that decided; its checks have to be run again.",
)
CONTAINS_COMPUTE_NODES = Replacement(
    target=f"{_PARTITIONER}:NeutronPartitioner._partition_contains_compute_nodes",
    reason="The partitioner withdraws partitions without effect and does not report which.",
    upstream="pytorch/executorch#16901",
)
VALIDATE_PARTITIONING = Replacement(
    target=f"{_PARTITIONER}:NeutronPartitioner.validate_partitioning_result",
    reason="The partitioner withdraws nodes of formed partitions and does not report why.",
    upstream="pytorch/executorch#14373",
)
IS_FUSED_ACTIVATION = Replacement(
    target="executorch.backends.nxp.backend.neutron_target_spec:NeutronTargetNeutronC.is_supported_fused_activation__aten",
    reason="Counts sigmoid and tanh, so that what a convolution gives them is clipped to the range of their results.",
)
REDIRECT_TENSOR = Replacement(
    target="executorch.backends.nxp.backend.ir.converter.builder.model_builder:ModelBuilder.redirect_tensor",
    reason="Leaves earlier redirections to the tensor as they are: a max_pool2d with two users becomes a LiteRT model "
    "with an input that nothing computes.",
)
BINARY_PAYLOAD = Replacement(
    target="executorch.backends.nxp.nxp_backend:PayloadComposer.get_binary_payload",
    reason="ExecuTorch provides the payload of a partition only inside the program; here it is stored separately.",
)
CONVERT = Replacement(
    target=f"{_MANAGER}:NeutronConverterManager.convert",
    reason="The backend calls the installed SDK without a time limit; a flavor may be another installation, and every "
    "partition needs its own folder.",
    upstream="pytorch/executorch#17625",
)
NEUTRON_CONVERTER = Replacement(
    target=f"{_MANAGER}:neutron_converter",
    reason="The backend binds the SDK once, at its import; a process can switch flavors.",
    upstream="pytorch/executorch#17625",
)
NEUTRON_LIBRARY_UTILS = Replacement(
    target=f"{_MANAGER}:neutron_library_utils",
    reason="The same as for neutron_converter.",
    upstream="pytorch/executorch#17625",
)
EDGE_PASS = Replacement(
    target="executorch.backends.nxp.edge_passes.neutron_edge_pass:NeutronEdgePass.call",
    reason="Every pass traces the program once more, also where it has changed nothing: eight times for most programs.",
    for_speed_only=True,
)
WARNING = Replacement(
    target="executorch.backends.nxp.backend.ir.logger:w",
    reason="Prints the same warning for every constant; once is enough.",
)


def traced_if_changed(call: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """`call` of a pass; a graph that the pass leaves as it is is not traced again."""

    def call_if_changed(edge_pass: Any, graph_module: Any) -> Any:
        from torch.fx.passes.infra.pass_base import PassResult

        first = edge_pass.run(graph_module)
        if not first.modified:
            return PassResult(graph_module, False)
        return PassResult(call(edge_pass, first.graph_module).graph_module, True)

    return call_if_changed


def told_once(warn: Callable[[str], None]) -> Callable[[str], None]:
    """`warn` for messages that differ from earlier ones in more than a quoted name."""
    told: set[str] = set()

    def warn_once(message: str) -> None:
        text = re.sub(r"'[^']*'", "", message)
        if text not in told:
            told.add(text)
            warn(message)

    return warn_once
