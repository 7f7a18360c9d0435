"""Replacements in ExecuTorch's export of edge programs."""

from __future__ import annotations

from lowerdeck.compat.replacement import Replacement

CHECK_DTYPES = Replacement(
    target="executorch.exir.verification.verifier:_check_tensor_args_matching_op_allowed_dtype",
    reason="Every ExportedProgram that is made or handed on executes its whole graph with fake tensors, to compare "
    "element types with those that operators allow. Partitioning checks the same graph seven times.",
    for_speed_only=True,
)
EXECUTE_NODE = Replacement(
    target="executorch.exir.pass_base:_ExportPassBase._fx",
    reason="Every pass executes all operators of its graph with fake tensors, most of them on the same layouts as "
    "the pass before: a quarter of the time of compiling MobileNetV2 for Ethos-U, a third for a vision transformer.",
    for_speed_only=True,
)
COMPILE_ALL = Replacement(
    target="executorch.exir.backend.backend_details:BackendDetails.preprocess_multimethod",
    reason="It compiles a program's partitions one after the other, on one processor.",
    for_speed_only=True,
)
