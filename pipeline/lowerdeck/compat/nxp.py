"""What is replaced in ExecuTorch's NXP backend. Its module needs `eiq_neutron_sdk` when it is imported."""

from __future__ import annotations

from lowerdeck.compat.replacement import Replacement

_PARTITIONER = "executorch.backends.nxp.neutron_partitioner"
_MANAGER = "executorch.backends.nxp.backend.neutron_converter_manager"

SUPPORTED_OPERATORS = Replacement(
    target=f"{_PARTITIONER}:NeutronSupportedOperators",
    reason="The partitioner keeps no reasons, and not the object that decided either, which is asked again for them.",
)
CONTAINS_COMPUTE_NODES = Replacement(
    target=f"{_PARTITIONER}:NeutronPartitioner._partition_contains_compute_nodes",
    reason="The partitioner takes back partitions without effect and does not say which.",
    upstream="pytorch/executorch#16901",
)
VALIDATE_PARTITIONING = Replacement(
    target=f"{_PARTITIONER}:NeutronPartitioner.validate_partitioning_result",
    reason="The partitioner takes back nodes of partitions that it had formed and does not say why.",
    upstream="pytorch/executorch#14373",
)
BINARY_PAYLOAD = Replacement(
    target="executorch.backends.nxp.nxp_backend:PayloadComposer.get_binary_payload",
    reason="ExecuTorch hands out the payload of a partition only as a part of the program; here it is kept by itself.",
)
CONVERT = Replacement(
    target=f"{_MANAGER}:NeutronConverterManager.convert",
    reason="The backend calls the installed SDK without a time limit; a flavor may be another installation, and every "
    "partition is converted in a folder of its own.",
    upstream="pytorch/executorch#17625",
)
NEUTRON_CONVERTER = Replacement(
    target=f"{_MANAGER}:neutron_converter",
    reason="The backend binds the SDK once, when it is imported; a process can go from one flavor to another.",
    upstream="pytorch/executorch#17625",
)
NEUTRON_LIBRARY_UTILS = Replacement(
    target=f"{_MANAGER}:neutron_library_utils",
    reason="The same as for neutron_converter.",
    upstream="pytorch/executorch#17625",
)
