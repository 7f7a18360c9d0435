"""A backend's partitioner with everything that acts around it: the one place where partition hooks are put together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from executorch.exir.backend.partitioner import Partitioner, PartitionResult

from lowerdeck.contracts.lowering import Lowering
from lowerdeck.contracts.partition_hooks import PartitionHook, PreservedOperators
from lowerdeck.graph.io_boundary import keep_io_boundary_on_cpu

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def partition_chain(lowering: Lowering, *step_hooks: PartitionHook) -> PartitionChain:
    """The partitioner of `lowering` within its own hooks, that of the I/O boundary and those of a step.

    ExecuTorch is given this one, whatever the backend. The order is that of HookPosition.
    """
    return PartitionChain(lowering.partitioner, [*lowering.hooks, *keep_io_boundary_on_cpu(lowering), *step_hooks])


class PartitionChain(Partitioner):  # type: ignore[misc]  # ExecuTorch is untyped
    """A partitioner that asks another one, with hooks around its answers."""

    def __init__(self, partitioner: Partitioner, hooks: Sequence[PartitionHook]) -> None:
        super().__init__()
        self._partitioner = partitioner
        self.hooks = tuple(sorted(hooks, key=lambda hook: hook.position))
        """From the partitioner outwards."""
        positions = [hook.position for hook in hooks]
        assert len(set(positions)) == len(positions), f"two hooks stand at one position: {positions}"

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag what is delegated."""
        decide = self._partitioner.partition
        for hook in self.hooks:
            if hook.partition is not None:
                decide = partial(hook.partition, decide)
        return decide(exported_program)

    def ops_to_not_decompose(self, ep: ExportedProgram) -> PreservedOperators:
        """Operators that the delegate takes whole, and for which of their nodes."""
        preserve = self._partitioner.ops_to_not_decompose
        for hook in self.hooks:
            if hook.ops_to_not_decompose is not None:
                preserve = partial(hook.ops_to_not_decompose, preserve)
        answer: PreservedOperators = preserve(ep)
        return answer

    def transform_for_pre_decomposition(self, exported_program: ExportedProgram) -> ExportedProgram:
        """Passes of the backend over the ATen program."""
        transformed: ExportedProgram = self._partitioner.transform_for_pre_decomposition(exported_program)
        return transformed
