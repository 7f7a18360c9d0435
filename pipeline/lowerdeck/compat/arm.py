"""What is replaced in ExecuTorch's Arm backend, and in Vela."""

from __future__ import annotations

from lowerdeck.compat.replacement import Replacement

_SUPPORT = "executorch.backends.arm.operator_support.tosa_supported_operators"
_PARTITIONER = "executorch.backends.arm.tosa.partitioner"

CHAIN = Replacement(
    target=f"{_SUPPORT}:chain",
    reason="torch's `chain` does not say which of its checks refused a node.",
    upstream="pytorch/executorch#8963",
)
ANY_CHAIN = Replacement(
    target=f"{_SUPPORT}:any_chain",
    reason="torch's `any_chain` does not give its checks, of which the one for a refused operator is asked again.",
    upstream="pytorch/executorch#8963",
)
REPORTER = Replacement(
    target=f"{_PARTITIONER}:WhyNoPartitionReporter",
    reason="The reporter keeps words, of the first report on a node only; the condition and the values that decided "
    "are in the frame that reports.",
    upstream="pytorch/executorch#8963",
)
DETAG_BOUNDARY_NODES = Replacement(
    target=f"{_PARTITIONER}:TOSAPartitioner._detag_boundary_nodes",
    reason="It takes quantize and dequantize nodes off the boundary of a partition and does not report that.",
    upstream="pytorch/executorch#8963",
)
HAS_INVALID_UINT8 = Replacement(
    target=f"{_PARTITIONER}:TOSAPartitioner._partition_has_invalid_uint8",
    reason="Why a whole partition is rejected is reported in the same way for uint8 and for a partition without "
    "operators; only this answer tells them apart.",
    upstream="pytorch/executorch#8963",
)
CREATE_OPERATOR_SUPPORT = Replacement(
    target=f"{_PARTITIONER}:TOSAPartitioner._create_operator_support",
    reason="Only here the program is at hand that the checks of a more capable Ethos-U have to be made for.",
)
COMPILE_TOSA = Replacement(
    target="executorch.backends.arm.ethosu:EthosUBackend._compile_tosa_flatbuffer",
    reason="Vela is native code that may crash: it runs in a process of its own with a time limit, and the TOSA graph "
    "is kept as host twin.",
)
TOSA_PREPROCESS = Replacement(
    target="executorch.backends.arm.tosa.backend:TOSABackend._preprocess",
    reason="A compile spec that asks for debug information stands in the `.pte` with the folder that it is written to; "
    "here the spec of the conversion to TOSA alone asks for it, which is not kept.",
    upstream="pytorch/executorch#13908",
)
DEBUG_SCHEMA_OF_NODE = Replacement(
    target="executorch.backends.arm.debug.schema:TorchDebugSchema.from_node",
    reason="Its stack traces hold the paths of one machine, which would make the report differ between machines.",
    upstream="pytorch/executorch#13908",
)
REGOR = Replacement(
    target="ethosu.vela.vela:regor",
    reason="Vela writes its performance estimate as text only; the compiler core has it as numbers.",
)
