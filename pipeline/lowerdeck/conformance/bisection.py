"""Finds the operators of a partition that make it compute something else than the subgraph that it replaces.

Pieces of the subgraph are compiled on their own and compared on the values that the edge program computes at their
inputs, so that an error before a piece has no effect on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from executorch.exir.backend.partitioner import PartitionResult
from executorch.exir.backend.utils import tag_constant_data

from lowerdeck.conformance.partitions import Values, check_partition, twins_by_payload
from lowerdeck.conformance.subgraphs import Subgraph, subgraphs
from lowerdeck.conformance.units import Unit, names_in, units
from lowerdeck.contracts.conformance import PartitionConformance
from lowerdeck.contracts.partition_hooks import HookPosition, Partition, PartitionHook
from lowerdeck.contracts.plan import Reason
from lowerdeck.delegation.partition_chain import partition_chain
from lowerdeck.graph.nodes import DELEGATION_TAG

if TYPE_CHECKING:
    from pathlib import Path

    from executorch.exir import EdgeProgramManager
    from torch.export import ExportedProgram

    from lowerdeck.contracts.backends import Backend

_MAX_TOGETHER = 4
"""Most units of a culprit: beyond it the errors of a deep network have added up, and no operator is to blame."""
Check = Callable[[Sequence[Unit]], PartitionConformance | None]
"""Compiles some units on their own and compares them; None where they cannot be compiled."""


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """The smallest piece of a partition that was found to compute something else."""

    units: tuple[Unit, ...]
    """One, or several that are wrong only together."""
    conformance: PartitionConformance
    """Its errors when it is compiled on its own."""


def find_culprit(found: Sequence[Unit], check: Check) -> Culprit | None:
    """Bisect `found`, whose units together compute something else; None where no small piece of them does on its own.

    Args:
        found: Units in an order in which none depends on a later one.
        check: Compiles some consecutive units.
    """
    pieces = list(found)
    while len(pieces) > 1:
        half = len(pieces) // 2
        wrong = next((part for part in (pieces[:half], pieces[half:]) if _is_wrong(check(part))), None)
        if wrong is None:
            pieces = _without_ends(pieces, check)
            break
        pieces = wrong
    if len(pieces) > _MAX_TOGETHER:
        return None
    conformance = check(pieces)
    if conformance is None or conformance.conforms:
        return None
    return Culprit(units=tuple(pieces), conformance=conformance)


def _without_ends(pieces: list[Unit], check: Check) -> list[Unit]:
    """The shortest run of units that is wrong only together: units are left out at either end while it stays wrong."""
    for end in (slice(1, None), slice(None, -1)):
        while len(pieces) > 2 and _is_wrong(check(pieces[end])):
            pieces = pieces[end]
    return pieces


def _is_wrong(conformance: PartitionConformance | None) -> bool:
    return conformance is not None and not conformance.conforms


class PieceCompiler:
    """Compiles pieces of one partition and compares them."""

    def __init__(
        self,
        manager: EdgeProgramManager,
        backend: Backend,
        samples: Sequence[Values],
        workdir: Path,
        wrong: Mapping[str, Reason],
    ) -> None:
        """Prepare for one partition.

        Args:
            manager: The edge program before lowering.
            backend: The backend.
            samples: For every sample the values of all nodes.
            workdir: Folder for the converter's files.
            wrong: Nodes that stay on the CPU, as for the partition.
        """
        self._manager, self._backend, self._samples = manager, backend, samples
        self._workdir, self._wrong = workdir, wrong
        self.count = 0
        """Number of pieces compiled so far."""

    def check(self, chosen: Sequence[Unit]) -> PartitionConformance | None:
        """Compile `chosen` on their own and compare them."""
        self.count += 1
        workdir = self._workdir / f"piece_{self.count}"
        workdir.mkdir(parents=True)
        lowering = self._backend.lowering(self._manager.exported_program())
        chain = partition_chain(lowering, _only(names_in(chosen)), wrong=self._wrong)
        try:
            with self._backend.compiling(workdir) as partitions:
                lowered = self._manager.to_backend(chain)
            (part,) = subgraphs(lowered.exported_program().graph_module)
            return check_partition(part, twins_by_payload(partitions), self._samples, synthetic=False)
        except Exception:  # a piece that cannot be compiled or executed alone shows nothing, whatever is raised
            return None


def culprit_of(
    part: Subgraph,
    manager: EdgeProgramManager,
    backend: Backend,
    samples: Sequence[Values],
    workdir: Path,
    wrong: Mapping[str, Reason],
) -> Culprit | None:
    """The piece of a partition that makes it wrong; None where every piece is right on its own."""
    compiler = PieceCompiler(manager, backend, samples, workdir, wrong)
    return find_culprit(units(part.program.graph), compiler.check)


def _only(names: frozenset[str]) -> PartitionHook:
    """The hook that leaves a single partition with the nodes `names`."""

    def partition_only(decide: Partition, program: ExportedProgram) -> PartitionResult:
        result = decide(program)
        tagged = result.tagged_exported_program
        chosen = {node.meta.get(DELEGATION_TAG) for node in tagged.graph.nodes if node.name in names} - {None}
        assert len(chosen) == 1, f"a piece of one partition is in {chosen}"
        (own,) = chosen
        specs: Mapping[str, object] = result.partition_tags
        for node in tagged.graph.nodes:
            if node.name not in names:
                node.meta.pop(DELEGATION_TAG, None)
        tag_constant_data(tagged)
        return PartitionResult(tagged_exported_program=tagged, partition_tags={own: specs[own]})

    return PartitionHook(position=HookPosition.STEP, partition=partition_only)
