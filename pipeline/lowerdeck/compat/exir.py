"""Replacements in ExecuTorch's export of edge programs."""

from __future__ import annotations

from lowerdeck.compat.replacement import Replacement

CHECK_DTYPES = Replacement(
    target="executorch.exir.verification.verifier:_check_tensor_args_matching_op_allowed_dtype",
    reason="Every ExportedProgram that is made or handed on executes its whole graph with fake tensors, to compare "
    "element types with those that operators allow. Partitioning checks the same graph seven times.",
    for_speed_only=True,
)
