"""Replacements in ExecuTorch's XNNPACK backend."""

from __future__ import annotations

from lowerdeck.compat.replacement import Replacement

PREPROCESS = Replacement(
    target="executorch.backends.xnnpack.xnnpack_preprocess:XnnpackBackend.preprocess",
    reason="ExecuTorch provides the payload of a partition only inside the program; here it is stored separately.",
)
SERIALIZE = Replacement(
    target="executorch.backends.xnnpack.xnnpack_preprocess:serialize_xnnpack_binary",
    reason="The XNNGraph of a partition, in which transposes are counted, exists only before serialization.",
)
NCHW_OPERATORS = Replacement(
    target="executorch.backends.xnnpack._passes.channels_last_tagged_reshape_pass:"
    "ChannelsLastTaggedReshapePass.memory_sensitive_ops_nchw",
    reason="Lacks softmax, which XNNPACK computes over the innermost dimension: the channels of channels-last data.",
)
INPUT_TO_NHWC = Replacement(
    target="executorch.backends.xnnpack._passes.channels_last_tagged_reshape_pass:"
    "ChannelsLastTaggedReshapePass.input_to_nhwc",
    reason="Copies an input of the partition for a layer of dynamic quantization, whatever is computed in between.",
)
ATTENTION_PATTERNS = Replacement(
    target="executorch.backends.xnnpack.partition.graphs.sdpa:get_graphs",
    reason="Exports an attention to match its pattern, even if the program has none.",
    upstream="pytorch/executorch#1893",
    for_speed_only=True,
)
INTERPOLATION_PATTERNS = Replacement(
    target="executorch.backends.xnnpack.partition.graphs.bilinear_2d:get_graphs_dict",
    reason="Exports interpolations to match their patterns, even if the program has none.",
    upstream="pytorch/executorch#1893",
    for_speed_only=True,
)
ANNOTATORS = Replacement(
    target="executorch.backends.xnnpack.quantizer.xnnpack_quantizer:OP_TO_ANNOTATOR",
    reason="XNNPACKQuantizer traces a dozen patterns of convolutions with batch norm, which prepare_pt2e has folded.",
    for_speed_only=True,
)
