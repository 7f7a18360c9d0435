"""Creates NXP's partitioner for the chosen options.

Import this after `sdk.provide_sdk`: importing ExecuTorch's backend requires the SDK.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from lowerdeck.contracts.plan import Reason, ReasonCode
from lowerdeck.delegation.exclusion import is_excluded, keep_off, mark_before_partition
from lowerdeck.graph.nodes import is_operator, operator_name
from lowerdeck.registry import components, import_paths

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import PartitionResult
    from torch.export import ExportedProgram


_LONGEST_SOFTMAX = 512
"""int8 softmax divides by 2^(num_bits_over_unit + 23), and gemmlowp's RoundingDivideByPOT asserts at most 2^31
(tensorflow/lite/kernels/internal/reference/softmax.h)."""
_ENDS_LITERT = Reason(
    code=ReasonCode.CONSTRAINT,
    message=f"LiteRT's kernels abort where the exponentials of a softmax add up to {_LONGEST_SOFTMAX}, and this one is "
    "as long",
    check="softmax",
)


def create_partitioner(device: Device, options: Options, weights: Mapping[str, torch.Tensor]) -> NeutronPartitioner:
    """Create the NeutronPartitioner for `options`; `partition_hooks` exclude nodes.

    Args:
        device: The NPU.
        options: Partitioner and compile spec.
        weights: State dict of the quantized program. The partitioner sees fake tensors, but some checks of the backend
            need values to recognize an operator without effect.

    Raises:
        LowerdeckError: an operator of `preserve_ops` is unknown, or the backend has no converter for it.
    """
    return NeutronPartitioner(
        # Without `intermediates_dir`, which would be embedded in the `.pte` (convert stores the files itself), and
        # without `operators_not_to_delegate`, which the backend matches against parts of node names.
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
    """Return the hooks around NXP's partitioner."""
    return (
        PartitionHook(
            position=HookPosition.BACKEND,
            partition=_partition_unmarked,
            ops_to_not_decompose=_preserve_with_values,
        ),
        mark_before_partition(options),
    )


def _as_text(flags: Mapping[str, bool | int | float | str]) -> str | None:
    """`flags` for the compile spec, which only records them; ExecuTorch 1.5.1 does not pass them on."""
    return " ".join(f"{name}={value}" for name, value in sorted(flags.items())) or None


def _operators(names: Sequence[str]) -> list[torch._ops.OpOverload]:
    """The ATen operators called `names` that the backend has a converter for."""
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
    """The function at `path`, with its exceptions converted to LowerdeckError."""
    function = import_paths.import_callable(path, CHECK)

    def check(node: torch.fx.Node) -> bool:
        try:
            return bool(function(node))
        except Exception as error:  # whatever a user's code raises
            raise LowerdeckError(f"{CHECK}: {path} raised {type(error).__name__} at {node.name}: {error}") from error

    return check


def _preserve_with_values(preserve: PreserveOperators, program: ExportedProgram) -> PreservedOperators:
    with _values_of_all_nodes(program):
        return preserve(program)


@contextmanager
def _values_of_all_nodes(program: ExportedProgram) -> Iterator[None]:
    """Add the values that the backend reads without asking whether there are any.

    The output of an ATen program has none, and neither have the branches of a torch.cond, which are graphs.
    """
    added = [node for node in program.graph.nodes if node.meta.get("val") is None]
    for node in added:
        is_output = node.op == "output"
        node.meta["val"] = tuple(each.meta["val"] for each in node.all_input_nodes) if is_output else ()
    try:
        yield
    finally:
        for node in added:
            del node.meta["val"]


def _partition_unmarked(decide: Partition, program: ExportedProgram) -> PartitionResult:
    """Keep excluded nodes on the CPU, each with its quantize/dequantize cluster.

    The compute node alone decides whether its cluster is delegated. The rest of a cluster without it would neither be
    quantized arithmetic, which the NPU needs, nor be refused.
    """
    for node in program.graph.nodes:
        if is_operator(operator_name(node), "aten._softmax.default") and _ends_litert(node):
            keep_off(node, _ENDS_LITERT)
    marked = [node for node in program.graph.nodes if is_excluded(node)]
    recognizer = QDQClusterRecognizer()
    if marked:
        recognizer.tag_qdq_clusters(list(program.graph.nodes))
    for node in marked:
        node.meta[NXP_DO_NOT_DELEGATE] = True
        cluster = recognizer.cluster_map.get(node.meta.get("cluster", ""))
        if cluster is not None:
            cluster.compute_node.meta[NXP_DO_NOT_DELEGATE] = True
    with _values_of_all_nodes(program):
        return decide(program)


def _ends_litert(softmax: torch.fx.Node) -> bool:
    """Whether the sum of exponentials may reach 512, where LiteRT's kernels for integers abort the process."""
    size = softmax.meta["val"].shape[softmax.args[1]]
    return not isinstance(size, int) or size >= _LONGEST_SOFTMAX
