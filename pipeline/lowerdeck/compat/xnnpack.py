"""What is replaced in ExecuTorch's XNNPACK backend."""

from __future__ import annotations

from lowerdeck.compat.replacement import Replacement

PREPROCESS = Replacement(
    target="executorch.backends.xnnpack.xnnpack_preprocess:XnnpackBackend.preprocess",
    reason="ExecuTorch hands out the payload of a partition only as a part of the program; here it is kept by itself.",
)
SERIALIZE = Replacement(
    target="executorch.backends.xnnpack.xnnpack_preprocess:serialize_xnnpack_binary",
    reason="The XNNGraph of a partition exists only between conversion and serialization; its transposes are counted "
    "there.",
)
ATTENTION_PATTERNS = Replacement(
    target="executorch.backends.xnnpack.partition.graphs.sdpa:get_graphs",
    reason="Exports an attention to look for its pattern, whether the program has an attention or not.",
    upstream="pytorch/executorch#1893",
    for_speed_only=True,
)
INTERPOLATION_PATTERNS = Replacement(
    target="executorch.backends.xnnpack.partition.graphs.bilinear_2d:get_graphs_dict",
    reason="Exports interpolations to look for their patterns, whether the program has an interpolation or not.",
    upstream="pytorch/executorch#1893",
    for_speed_only=True,
)
ANNOTATORS = Replacement(
    target="executorch.backends.xnnpack.quantizer.xnnpack_quantizer:OP_TO_ANNOTATOR",
    reason="XNNPACKQuantizer traces a dozen patterns of convolutions with batch norm to look for them, whether the "
    "program has a batch norm or not.",
    for_speed_only=True,
)
