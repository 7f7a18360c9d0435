"""NXP's partitioner as the options want it.

Import this after `sdk.provide_sdk`: ExecuTorch's backend needs the SDK when it is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from executorch.backends.nxp.backend.custom_delegation_options import CustomDelegationOptions
from executorch.backends.nxp.backend.neutron_target_spec import NeutronTargetSpec
from executorch.backends.nxp.neutron_partitioner import (
    NXP_DO_NOT_DELEGATE,
    NeutronPartitioner,
    QDQClusterRecognizer,
    supported_ops,
)
from executorch.backends.nxp.nxp_backend import generate_neutron_compile_spec

from lowerdeck.backends.neutron.options import CHECK, Device, Options
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.partition_hooks import (
    HookPosition,
    Partition,
    PartitionHook,
    PreservedOperators,
    PreserveOperators,
)
from lowerdeck.delegation.exclusion import excluded_by, mark_before_partition
from lowerdeck.graph.nodes import is_operator
from lowerdeck.registry import components, import_paths

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import PartitionResult
    from torch.export import ExportedProgram


def create_partitioner(device: Device, options: Options, weights: Mapping[str, torch.Tensor]) -> NeutronPartitioner:
    """NeutronPartitioner with `options`; `partition_hooks` have it keep on the CPU what they exclude.

    Args:
        device: The NPU.
        options: Partitioner and compile spec.
        weights: State dict of the quantized program. Partitioning sees fake tensors, and some of the backend's checks
            look at the values: without them it takes an operator without effect for one that computes.

    Raises:
        LowerdeckError: an operator of `preserve_ops` is not known, or the backend has no converter for it.
    """
    return NeutronPartitioner(
        # `intermediates_dir` is left out: it would be embedded in the `.pte`, and convert keeps the files by itself.
        # So is `operators_not_to_delegate`, which the backend matches as a part of nodes' names.
        generate_neutron_compile_spec(
            device.target,
            extra_flags=_as_text(options.extra_flags),
            use_neutron_for_format_conversion=options.use_neutron_for_format_conversion,
            fetch_constants_to_sram=options.fetch_constants_to_sram,
            dump_kernel_selection_code=options.dump_kernel_selection_code,
            use_profiling=options.use_profiling,
        ),
        NeutronTargetSpec(device.target),
        CustomDelegationOptions(allow_no_op_partitions=options.allow_no_op_partitions),
        post_quantization_state_dict=dict(weights),
        preserve_ops=_operators(options.preserve_ops),
        check_op_support=None if options.check_op_support is None else _user_check(options.check_op_support),
    )


def partition_hooks(options: Options) -> tuple[PartitionHook, ...]:
    """What acts around NXP's partitioner."""
    return (
        PartitionHook(
            position=HookPosition.BACKEND,
            partition=_partition_unmarked,
            ops_to_not_decompose=_preserve_with_output_value,
        ),
        mark_before_partition(options),
    )


def _as_text(flags: Mapping[str, bool | int | float | str]) -> str | None:
    """`flags` for the compile spec, which only records them: in ExecuTorch 1.5.1 they reach no converter."""
    return " ".join(f"{name}={value}" for name, value in sorted(flags.items())) or None


def _operators(names: Sequence[str]) -> list[torch._ops.OpOverload]:
    """The ATen operators called `names`, of those that the backend has a converter for."""
    known = {str(edge._op): edge._op for edge in supported_ops}
    found = []
    for name in names:
        matched = [operator for known_name, operator in known.items() if is_operator(known_name, name)]
        if not matched:
            raise LowerdeckError(
                f"target.options.preserve_ops: {name!r} is not an operator that the Neutron backend converts whole: "
                "preserving it would put it on the CPU, which has no kernel for it."
                f"{components.did_you_mean(name.replace('::', '.'), known)}\n    allowed: {', '.join(sorted(known))}"
            )
        found += matched
    return found


def _user_check(path: str) -> Callable[[torch.fx.Node], bool]:
    """The function at `path`, whose errors become messages."""
    function = import_paths.import_callable(path, CHECK)

    def check(node: torch.fx.Node) -> bool:
        try:
            return bool(function(node))
        except Exception as error:  # whatever a user's code raises
            raise LowerdeckError(f"{CHECK}: {path} raised {type(error).__name__} at {node.name}: {error}") from error

    return check


def _preserve_with_output_value(preserve: PreserveOperators, program: ExportedProgram) -> PreservedOperators:
    """Let the backend look at ATen programs that end in a float convolution or the like.

    It asks the output node for its value there, which ATen programs do not have, and stops with an assertion.
    """
    output = program.graph.output_node()
    value = output.meta.get("val")
    output.meta["val"] = tuple(node.meta["val"] for node in output.all_input_nodes) if value is None else value
    try:
        return preserve(program)
    finally:
        if value is None:
            del output.meta["val"]


def _partition_unmarked(decide: Partition, program: ExportedProgram) -> PartitionResult:
    """Keep excluded nodes on the CPU, each with the quantize/dequantize cluster that it is in.

    A cluster is delegated or not by its compute node alone. Without it, what is left of the cluster would neither be
    quantized arithmetic, which the NPU needs, nor be refused.
    """
    marked = [node for node in program.graph.nodes if excluded_by(node) is not None]
    recognizer = QDQClusterRecognizer()
    if marked:
        recognizer.tag_qdq_clusters(list(program.graph.nodes))
    for node in marked:
        node.meta[NXP_DO_NOT_DELEGATE] = True
        cluster = recognizer.cluster_map.get(node.meta.get("cluster", ""))
        if cluster is not None:
            cluster.compute_node.meta[NXP_DO_NOT_DELEGATE] = True
    return decide(program)
