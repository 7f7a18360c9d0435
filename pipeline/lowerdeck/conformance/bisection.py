"""Finds the operators of a partition that its backend computes wrongly or cannot compile.

Pieces of the partition are compiled on their own. They are compared with the subgraphs that they replace on the values
that the edge program computes at their inputs, so that an error before a piece has no effect on it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING

from executorch.exir.backend.partitioner import PartitionResult
from executorch.exir.backend.utils import tag_constant_data

from lowerdeck.conformance.partitions import Values, check_executes, check_partition, shared_twins
from lowerdeck.conformance.subgraphs import Subgraph, subgraphs
from lowerdeck.conformance.units import Unit, names_in, units
from lowerdeck.contracts.conformance import PartitionConformance
from lowerdeck.contracts.errors import PartitionCompilationError, PartitionExecutionError, is_of_host
from lowerdeck.contracts.lowering import CompiledPartition
from lowerdeck.contracts.partition_hooks import HookPosition, Partition, PartitionHook
from lowerdeck.contracts.plan import Reason
from lowerdeck.delegation.compilation import same_failure
from lowerdeck.delegation.partition_chain import partition_chain
from lowerdeck.graph.nodes import DELEGATION_TAG, constant_names, operator_name

if TYPE_CHECKING:
    from pathlib import Path

    from executorch.exir import EdgeProgramManager
    from torch.export import ExportedProgram
    from torch.fx import Graph

    from lowerdeck.contracts.backends import Backend

MAX_TOGETHER = 4
"""Most units of a culprit in a partition that is little worse than its bound: more have only added up their errors."""
_MOST_PIECES = 8
"""Pieces that a partition is divided into at once to find what rounding hides; units across their ends are a second
lowering."""
_LEAST_UNITS = 4
"""Of such a piece, unless there are two."""
_ALL_FAIL = 4
"""Operators after which a compiler that failed on every piece so far is taken to fail on any."""
Check = Callable[[Sequence[Unit]], PartitionConformance | None]
"""Compiles some units on their own and compares them; None where they cannot be compiled."""

CheckAll = Callable[[Sequence[Sequence[Unit]]], Sequence[PartitionConformance | None]]
"""The same for several pieces that have no unit in common."""


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """The smallest piece of a partition that was found to compute something else."""

    units: tuple[Unit, ...]
    """One, or several that are wrong only together."""
    conformance: PartitionConformance
    """Its errors when it is compiled on its own."""


def find_culprit(
    found: Sequence[Unit], check: Check, max_together: int = MAX_TOGETHER, *, by_regions: bool = False
) -> Culprit | None:
    """Bisect `found`, whose units together compute something else; None where no small piece of them does on its own.

    Args:
        found: Units in an order in which none depends on a later one.
        check: Compiles some consecutive units.
        max_together: Most units of a culprit.
        by_regions: Whether rounding explains their error, but not that it is where it is. A culprit's it does not.
    """

    def is_wrong(chosen: Sequence[Unit]) -> bool:
        conformance = check(chosen)
        return _is_wrong(conformance) or (by_regions and conformance is not None and conformance.is_uneven)

    pieces = list(found)
    while len(pieces) > 1:
        half = len(pieces) // 2
        wrong = next((part for part in (pieces[:half], pieces[half:]) if is_wrong(part)), None)
        if wrong is None:
            pieces = _without_ends(pieces, is_wrong)
            break
        pieces = wrong
    if len(pieces) > max_together:
        return None
    conformance = check(pieces)
    if conformance is None or conformance.conforms:
        return None
    return Culprit(units=tuple(pieces), conformance=conformance)


def find_hidden(found: Sequence[Unit], check: Check, check_all: CheckAll) -> Culprit | None:
    """A piece that computes something else, of units whose common error rounding may explain; None if there is none.

    They are divided until the errors of pieces say something about their operators. Neighbours that are cut apart
    are looked at together, too.

    Args:
        found: Units in an order in which none depends on a later one.
        check: Compiles some consecutive units.
        check_all: Compiles several such pieces at once, which takes little longer than one.
    """
    level, levels = [found], []
    while level := [pieces for pieces in level if len(pieces) > 1]:
        divided = list(map(_divided, level))
        pieces = list(chain.from_iterable(divided))
        conformances = check_all(pieces)
        if (culprit := _first_wrong(pieces, conformances, check)) is not None:
            return culprit
        levels.append([cut for each in divided if sum(map(len, each)) > 2 for cut in _cuts(each)])
        level = [piece for piece, conformance in zip(pieces, conformances, strict=True) if _may_hide(conformance)]
    across = (_find_across(cuts, check, check_all) for cuts in levels)
    return next(filter(None, across), None)


def _divided(found: Sequence[Unit]) -> list[Sequence[Unit]]:
    """Pieces of about the same size, at least two."""
    count = min(_MOST_PIECES, max(2, len(found) // _LEAST_UNITS))
    bounds = [len(found) * index // count for index in range(count + 1)]
    return [found[start:end] for start, end in pairwise(bounds)]


def _cuts(divided: Sequence[Sequence[Unit]]) -> Iterator[tuple[Sequence[Unit], Sequence[Unit]]]:
    """The units before and after each cut, as many as can be looked at together for all cuts at once."""
    reach = max(1, sum(map(len, divided)) // len(divided) // 2)
    for before, after in pairwise(divided):
        yield before[-reach:], after[:reach]


def _find_across(
    cuts: Sequence[tuple[Sequence[Unit], Sequence[Unit]]], check: Check, check_all: CheckAll
) -> Culprit | None:
    """What is wrong only together, and was cut apart: units around each cut, fewer where rounding may hide it."""
    while cuts:
        pieces = [[*before, *after] for before, after in cuts]
        conformances = check_all(pieces)
        if (culprit := _first_wrong(pieces, conformances, check)) is not None:
            return culprit
        halved = [(before[(len(before) + 1) // 2 :], after[: len(after) // 2]) for before, after in cuts]
        cuts = [
            cut for cut, conformance in zip(halved, conformances, strict=True) if _may_hide(conformance) and all(cut)
        ]
    return None


def _first_wrong(
    pieces: Sequence[Sequence[Unit]], conformances: Sequence[PartitionConformance | None], check: Check
) -> Culprit | None:
    """The culprit in the first piece that computes something else."""
    wrong = (piece for piece, conformance in zip(pieces, conformances, strict=True) if _is_wrong(conformance))
    return next((find_culprit(piece, check, len(piece)) for piece in wrong), None)


def find_uncompilable(found: Sequence[Unit], fails: Callable[[Sequence[Unit]], bool]) -> list[tuple[Unit, ...]]:
    """All smallest pieces of `found`, whose units fail to compile together; empty where no operator is to blame.

    Args:
        found: Units in an order in which none depends on a later one.
        fails: Whether some consecutive units, compiled on their own, fail in the same way.
    """
    compiled, failed_alone = 0, 0

    def check(pieces: Sequence[Unit]) -> bool:
        nonlocal compiled, failed_alone
        if compiled == 0 and failed_alone == _ALL_FAIL:
            return False
        failed = fails(pieces)
        compiled += not failed
        failed_alone += failed and len(pieces) == 1
        return failed

    def search(pieces: list[Unit]) -> list[tuple[Unit, ...]]:
        if len(pieces) == 1:
            return [tuple(pieces)]
        half = len(pieces) // 2
        inside = [piece for part in (pieces[:half], pieces[half:]) if check(part) for piece in search(part)]
        return inside or [tuple(_without_ends(pieces, check))]

    culprits = search(list(found))
    return [] if compiled == 0 and failed_alone == _ALL_FAIL else culprits


def _without_ends(pieces: list[Unit], is_wrong: Callable[[Sequence[Unit]], bool]) -> list[Unit]:
    """The shortest run of units that is wrong only together: units are left out at either end while it stays wrong."""
    for end in (slice(1, None), slice(None, -1)):
        while len(pieces) > 2 and is_wrong(pieces[end]):
            pieces = pieces[end]
    return pieces


def _is_wrong(conformance: PartitionConformance | None) -> bool:
    return conformance is not None and not conformance.conforms


def _may_hide(conformance: PartitionConformance | None) -> bool:
    return conformance is None or conformance.is_loose


class PieceCompiler:
    """Compiles pieces of one partition."""

    def __init__(
        self, manager: EdgeProgramManager, backend: Backend, workdir: Path, faulty: Mapping[str, Reason]
    ) -> None:
        """Prepare for one partition.

        Args:
            manager: The edge program before lowering.
            backend: The backend.
            workdir: Folder for the converter's files.
            faulty: Nodes that stay on the CPU, as for the partition.
        """
        self._manager, self._backend, self._workdir, self._faulty = manager, backend, workdir, faulty
        self.count = 0
        """Number of pieces compiled so far."""

    def compile(self, *chosen: Sequence[Unit]) -> tuple[EdgeProgramManager, Sequence[CompiledPartition]]:
        """Compile pieces on their own: the lowered program with nothing else delegated, and its partitions."""
        self.count += 1
        workdir = self._workdir / f"piece_{self.count}"
        workdir.mkdir(parents=True)
        lowering = self._backend.lowering(self._manager.exported_program())
        chain = partition_chain(lowering, _only(*map(names_in, chosen)), faulty=self._faulty)
        with self._backend.compiling(workdir) as partitions:
            return self._manager.to_backend(chain), partitions


def culprit_of(
    part: Subgraph,
    compiler: PieceCompiler,
    samples: Sequence[Values],
    max_together: int = MAX_TOGETHER,
    *,
    hiding: PartitionConformance | None = None,
) -> Culprit | None:
    """The piece of a partition that makes it wrong; None where every piece is right on its own.

    Args:
        part: The partition.
        compiler: Compiles pieces of it.
        samples: For every sample the values of all nodes.
        max_together: Most operators of the piece.
        hiding: The partition's own agreement, in which it may hide; None where rounding does not explain its error.
    """

    def check_all(pieces: Sequence[Sequence[Unit]]) -> list[PartitionConformance | None]:
        try:
            lowered, partitions = compiler.compile(*pieces)
            twins, made = shared_twins(partitions), subgraphs(lowered.exported_program())
            by_piece = {
                index: check_partition(each, partitions, twins, samples, synthetic=False)
                for each in made
                for index, chosen in enumerate(pieces)
                if not each.nodes.isdisjoint(names_in(chosen))
            }
            return [by_piece[index] for index in range(len(pieces))]
        except Exception as error:  # a piece that cannot be compiled or executed alone shows nothing
            if is_of_host(error):
                raise
            half = len(pieces) // 2
            return [*check_all(pieces[:half]), *check_all(pieces[half:])] if half else [None]

    def check(chosen: Sequence[Unit]) -> PartitionConformance | None:
        return check_all([chosen])[0]

    found = units(part.program.graph, constants=constant_names(part.program))
    if hiding is None:
        return find_culprit(found, check, max_together)
    culprit = find_hidden(found, check, check_all)
    return find_culprit(found, check, len(found), by_regions=True) if culprit is None and hiding.is_uneven else culprit


def uncompilable_pieces(
    error: PartitionCompilationError,
    compiler: PieceCompiler,
    program: ExportedProgram,
    samples: Sequence[Values] = (),
    suspected: Collection[tuple[str, ...]] = (),
) -> list[tuple[Unit, ...]]:
    """The smallest pieces of a partition that fail as the whole does; empty where none is to blame.

    Args:
        error: How the partition failed to compile, or to execute.
        compiler: Compiles pieces of it.
        program: The edge program.
        samples: For every sample the values of all nodes, to execute pieces on.
        suspected: `operators_in` units to which other partitions owe that they fail; they are tried first, because
            blocks of a network fail alike. What else may fail shows when the program is lowered without them.
    """

    def fails(chosen: Sequence[Unit]) -> bool:
        try:
            lowered, partitions = compiler.compile(chosen)
            if isinstance(error, PartitionExecutionError):
                (piece,) = subgraphs(lowered.exported_program())
                check_executes(piece, partitions, shared_twins(partitions), samples, synthetic=False)
        except Exception as raised:  # whatever a library raises on a piece is only compared
            if is_of_host(raised):
                raise
            return same_failure(error, raised)
        return False

    graph = program.graph
    found = units(graph, error.nodes, constant_names(program))
    alike: list[tuple[Unit, ...]] = [
        (unit,) for unit in found if suspected and operators_in(unit, graph) in suspected and fails([unit])
    ]
    return alike or find_uncompilable(found, fails)


def operators_in(unit: Unit, graph: Graph) -> tuple[str, ...]:
    """Names of the operators of a unit, in the graph's order."""
    return tuple(operator_name(node) for node in graph.nodes if node.name in unit)


def _only(*pieces: frozenset[str]) -> PartitionHook:
    """The hook that leaves pieces of a single partition, each by the names of its nodes, as partitions."""

    def partition_only(decide: Partition, program: ExportedProgram) -> PartitionResult:
        result = decide(program)
        tagged = result.tagged_exported_program
        tags = {name: number for number, names in enumerate(pieces) for name in names}
        chosen = {node.meta.get(DELEGATION_TAG) for node in tagged.graph.nodes if node.name in tags} - {None}
        assert len(chosen) == 1, f"pieces of one partition are in {chosen}"
        (own,) = chosen
        specs: Mapping[str, object] = result.partition_tags
        for node in tagged.graph.nodes:
            tag = node.meta.pop(DELEGATION_TAG, None)
            if tag is not None and node.name in tags:
                node.meta[DELEGATION_TAG] = f"{own}_{tags[node.name]}"
        tag_constant_data(tagged)
        made = {f"{own}_{number}": specs[own] for number in range(len(pieces))}
        return PartitionResult(tagged_exported_program=tagged, partition_tags=made)

    return PartitionHook(position=HookPosition.STEP, partition=partition_only)
