"""Replacements in ExecuTorch's Arm backend and in Vela."""

from __future__ import annotations

from lowerdeck.compat.replacement import Replacement

_SUPPORT = "executorch.backends.arm.operator_support.tosa_supported_operators"
_PARTITIONER = "executorch.backends.arm.tosa.partitioner"

CHAIN = Replacement(
    target=f"{_SUPPORT}:chain",
    reason="torch's `chain` does not report which of its checks refused a node.",
    upstream="pytorch/executorch#8963",
)
ANY_CHAIN = Replacement(
    target=f"{_SUPPORT}:any_chain",
    reason="torch's `any_chain` hides its checks; the one for a refused operator has to be run again.",
    upstream="pytorch/executorch#8963",
)
REPORTER = Replacement(
    target=f"{_PARTITIONER}:WhyNoPartitionReporter",
    reason="Stores only the message of the first report on a node; the condition and its values are in the "
    "reporting frame.",
    upstream="pytorch/executorch#8963",
)
DETAG_BOUNDARY_NODES = Replacement(
    target=f"{_PARTITIONER}:TOSAPartitioner._detag_boundary_nodes",
    reason="Removes quantize and dequantize nodes from the boundary of a partition without reporting it.",
    upstream="pytorch/executorch#8963",
)
HAS_INVALID_UINT8 = Replacement(
    target=f"{_PARTITIONER}:TOSAPartitioner._partition_has_invalid_uint8",
    reason="Partitions rejected for uint8 and those without operators are reported alike; only this result separates "
    "them.",
    upstream="pytorch/executorch#8963",
)
CREATE_OPERATOR_SUPPORT = Replacement(
    target=f"{_PARTITIONER}:TOSAPartitioner._create_operator_support",
    reason="Checks of a more capable Ethos-U need the program, which is available only here.",
)
FUSE_QUANTIZED_ACTIVATION = Replacement(
    target="executorch.backends.arm._passes.fuse_quantized_activation_pass:FuseQuantizedActivationPass.call",
    reason="Drops a ReLU behind a convolution even if the quantization of its result also covers negative values, as "
    "where a concatenation shares it: `cat([conv1(x), relu(conv2(x))])` is wrong by up to the whole negative range.",
)
TRANSPOSED_WEIGHT = Replacement(
    target="executorch.backends.arm.quantizer.quantization_annotator:_adjust_weight_qspec_for_conv_transpose",
    reason="Gives the weight of a transposed convolution with groups a scale for each input channel, and its bias as "
    "many, which needs one for each output channel.",
)
ROUNDED_DIVISION = Replacement(
    target="executorch.backends.arm._passes.decompose_div_tensor_mode:DecomposeDivTensorModePass.call_operator",
    reason="Divides integers as floats for an Ethos-U55, before quantization: `tokens // 8` is computed with 8 bits.",
)
CAST_INPUTS = Replacement(
    target="executorch.backends.arm._passes.insert_int32_casts_after_int64_placeholders:"
    "InsertInt32CastsAfterInt64PlaceholdersPass.call_operator",
    reason="Makes 32 bits of inputs with 64, and ends in an exception where an operator that takes one type alone "
    "adds, puts or scatters what is computed of them into a tensor of 64 bits.",
    is_addition=True,
)
IS_READ_BY_ONE_LAYER = Replacement(
    target="executorch.backends.arm._passes.fold_scalar_mul_into_conv_pass:FoldScalarMulIntoConvPass."
    "_can_mutate_get_attr",
    reason="Asks only whether a node that reads a weight has one user, before a factor is written into the weight in "
    "place. A layer that is called twice may have a node for each call: `conv(x) * 2 + torch.arange(8)` doubles what "
    "`conv(y)` returns, too.",
)
FIXED_RANGE = Replacement(
    target="executorch.backends.arm.quantizer.quantization_annotator:_get_fixed_qparams_qspec",
    reason="Clips the image of a grid_sample and its result to -1 ... 1, the range of a graphics processor's textures: "
    "8 dB are left of an image with a standard deviation of 1. Ethos-U leaves the operator to the CPU.",
)
ENQUEUE_SHARED_NODE = Replacement(
    target="executorch.backends.arm.quantizer.arm_quantizer_utils:SharedQspecQuantizer._maybe_enqueue_shared_node",
    reason="Follows integers and booleans, which have no scale, from one tensor to another: scores beside boxes in "
    "pixels become 0 where both are gathered by the same indices, or chosen by one comparison.",
)
TRACE_NODE = Replacement(
    target="executorch.backends.arm._passes.arm_pass:ArmPass._fx",
    reason="A quantized tanh, sigmoid or exponential function is float32 in the traced graph, and so is all behind it: "
    "passes cast integers to float32, or give a kernel that type, which TOSA refuses.",
    is_addition=True,
)
FUSE_CONSECUTIVE_RESCALES = Replacement(
    target="executorch.backends.arm._passes.fuse_consecutive_rescales_pass:FuseConsecutiveRescalesPass.call",
    reason="Leaves out that a sum saturates where the next one begins with its scale, as with int16x8, whose smallest "
    "scale most tensors have: a result beyond the range reaches the next operator as it is.",
)
WIDEN_FOR_SUMS = Replacement(
    target="executorch.backends.arm._passes.rewrite_conv_pass:RewriteConvPass._insert_a16w8_output_branches",
    reason="Leads the accumulator of a convolution past its 16 bits to a sum, which reads 32: what lies beyond the "
    "range of the convolution's result reaches the sum unsaturated.",
)
ENSURE_UNIQUE_OUTPUTS = Replacement(
    target="executorch.backends.arm._passes.ensure_unique_output_nodes_pass:EnsureUniqueOutputNodesPass.call",
    reason="Copies results that are returned twice, but not inputs that are results, too: Vela refuses such graphs.",
)
MOVE_BEFORE_CONCATENATION = Replacement(
    target="executorch.backends.transforms.propagate_view_copy_permute_pass:"
    "PropagateViewCopyPermuteUpPass._maybe_split_upwards_cat_fanout",
    reason="Moves a permutation in front of a concatenation, and drops inputs that read the same tensor: "
    "`cat([x, x, x], 1)` of an image with one channel becomes `cat([x], 1)`.",
)
CALL_EDGE_OPERATOR = Replacement(
    target="executorch.exir.dialects.edge._ops:EdgeOpOverload.__call__",
    reason="CortexMPassManager traces a program of integers in which linear layers give int32, a sigmoid, a GELU or a "
    "quotient float32, and all others int8. A matrix product of different types has no type, so that the second "
    "product of an attention was not lowered; the maximum of a linear layer, and a hard swish behind a gate, were left "
    "to portable kernels.",
)
BOUNDS_OF_FUSED_ACTIVATION = Replacement(
    target="executorch.backends.cortex_m.passes.activation_fusion_pass:ActivationFusionPass._get_validated_qparams",
    reason="Fuses a ReLU only into a layer whose integers begin at zero. Where a concatenation, minimum or maximum "
    "gives its result a wider range, the layer was left in float.",
)
ORDER_OF_PADDING = Replacement(
    target="executorch.backends.cortex_m.passes.aten_to_cortex_m_pass:to_physical_order",
    reason="Puts the padding of a pad or an average pooling into the order of memory that its operand had before the "
    "operators in front of it were replaced, which may return another: other dimensions were padded.",
)
COMPILE_TOSA = Replacement(
    target="executorch.backends.arm.ethosu:EthosUBackend._compile_tosa_flatbuffer",
    reason="Vela is native code that may crash: it runs in a separate process with a time limit, and the TOSA graph "
    "becomes the host twin.",
)
TOSA_PREPROCESS = Replacement(
    target="executorch.backends.arm.tosa.backend:TOSABackend._preprocess",
    reason="A compile spec that requests debug information enters the `.pte` with its output folder; here only the "
    "spec of the conversion to TOSA requests it, which is not stored.",
    upstream="pytorch/executorch#13908",
)
DEBUG_SCHEMA_OF_NODE = Replacement(
    target="executorch.backends.arm.debug.schema:TorchDebugSchema.from_node",
    reason="Its stack traces contain machine-specific paths, so the report would differ between machines.",
    upstream="pytorch/executorch#13908",
)
REGOR = Replacement(
    target="ethosu.vela.vela:regor",
    reason="Vela writes its performance estimate only as text; the compiler core provides numbers.",
)
