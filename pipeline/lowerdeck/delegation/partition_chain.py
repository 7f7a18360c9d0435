"""Wraps a backend's partitioner in its hooks; the only module that composes partition hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from executorch.exir.backend.partitioner import Partitioner, PartitionResult

from lowerdeck.contracts.lowering import Lowering
from lowerdeck.contracts.partition_hooks import PartitionHook, PreservedOperators
from lowerdeck.contracts.plan import Reason
from lowerdeck.delegation.exclusion import mark_faulty, skip_failing
from lowerdeck.delegation.fallback import assign_rest
from lowerdeck.graph.io_boundary import keep_io_boundary_on_cpu

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def partition_chain(
    lowering: Lowering, *step_hooks: PartitionHook, faulty: Mapping[str, Reason] = MappingProxyType({})
) -> PartitionChain:
    """Wrap the partitioner of `lowering` in its own hooks, those of the I/O boundary and those of a step.

    Every backend's partitioner reaches ExecuTorch this way. HookPosition defines the order.

    Args:
        lowering: How the backend lowers the program.
        step_hooks: Hooks of the step.
        faulty: Nodes that the delegate computes wrongly or does not compile, each with its reason; they stay on
            the CPU.
    """
    marking = [mark_faulty(faulty)] if faulty else []
    falling_back = [] if lowering.fallback is None else [assign_rest(lowering.fallback.partitioner)]
    hooks = [*lowering.hooks, skip_failing(), *marking, *keep_io_boundary_on_cpu(lowering), *falling_back, *step_hooks]
    return PartitionChain(lowering.partitioner, hooks)


class PartitionChain(Partitioner):  # type: ignore[misc]  # ExecuTorch is untyped
    """Forwards to another partitioner through hooks."""

    def __init__(self, partitioner: Partitioner, hooks: Sequence[PartitionHook]) -> None:
        super().__init__()
        self._partitioner = partitioner
        self.hooks = tuple(sorted(hooks, key=lambda hook: hook.position))
        """From the partitioner outwards."""
        positions = [hook.position for hook in hooks]
        assert len(set(positions)) == len(positions), f"two hooks have the same position: {positions}"

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag the nodes to delegate."""
        decide = self._partitioner.partition
        for hook in self.hooks:
            if hook.partition is not None:
                decide = partial(hook.partition, decide)
        return decide(exported_program)

    def ops_to_not_decompose(self, ep: ExportedProgram) -> PreservedOperators:
        """Return the operators to preserve, and for which of their nodes."""
        preserve = self._partitioner.ops_to_not_decompose
        for hook in self.hooks:
            if hook.ops_to_not_decompose is not None:
                preserve = partial(hook.ops_to_not_decompose, preserve)
        answer: PreservedOperators = preserve(ep)
        return answer

    def transform_for_pre_decomposition(self, exported_program: ExportedProgram) -> ExportedProgram:
        """Run the backend's passes over the ATen program."""
        transformed: ExportedProgram = self._partitioner.transform_for_pre_decomposition(exported_program)
        return transformed
