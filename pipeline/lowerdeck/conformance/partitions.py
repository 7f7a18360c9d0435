"""Executes every compiled partition beside the subgraph that it replaces, on the same inputs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import product
from threading import Event
from typing import TYPE_CHECKING

import torch

from lowerdeck.conformance.alone import open_alone
from lowerdeck.conformance.errors import output_error
from lowerdeck.conformance.subgraphs import Subgraph, precision_of, scale_of
from lowerdeck.contracts.conformance import OutputError, PartitionConformance
from lowerdeck.contracts.errors import LowerdeckError, PartitionExecutionError, is_of_host
from lowerdeck.contracts.lowering import CompiledPartition
from lowerdeck.graph import library_errors
from lowerdeck.graph.io_boundary import output_nodes
from lowerdeck.graph.node_values import NodeValues, RoundingSteps
from lowerdeck.graph.nodes import constant_names, is_compute
from lowerdeck.runtime.child_processes import RERUN, crash_in_fork
from lowerdeck.runtime.loading import Resolver
from lowerdeck.runtime.native import missing_delegates
from lowerdeck.runtime.shared_twins import SharedTwins
from lowerdeck.runtime.waiting import work_while_waiting

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from lowerdeck.conformance.errors import Pair
    from lowerdeck.contracts.plan import DelegationPlan

KERNELS: tuple[Resolver, ...] = ("optimized", "reference")
"""Sets of LiteRT's kernels that are compared with each other, the fastest first."""
ROUNDING_DRAWS = 9
"""How often integers are rounded otherwise to see what rounding explains: where a network amplifies it, one drawing may
explain half of what another does. Each executes the reference on one input, and few partitions need more than one."""
_MILDNESS = 4
"""That of the first drawing, in which two of nine integers take a step, as kernels do that round by themselves: its
bounds are narrower than those of the others, in which two of three do."""
_SEED = 0
_TRIAL_S = 600.0
_ALL = slice(None)
Values = Mapping[str, torch.Tensor]
"""Values by the name of the node that computes them."""
Inputs = tuple[torch.Tensor, ...]


def boundary_values(
    program: ExportedProgram, parts: Sequence[Subgraph], samples: Sequence[Inputs]
) -> list[dict[str, torch.Tensor]]:
    """Inputs and outputs of `parts`, and the outputs of the edge program, which computes them in PyTorch, per sample.

    Args:
        program: The edge program before lowering.
        parts: Parts of it.
        samples: Inputs of the program, in consecutive calls.
    """
    return _values(program, _boundary(parts), samples)


@contextmanager
def boundary_values_ahead(
    program: ExportedProgram, plan: DelegationPlan, samples: Sequence[Inputs]
) -> Iterator[Callable[[Sequence[Subgraph]], list[dict[str, torch.Tensor]]]]:
    """Within the block, compute the values at the boundaries of planned partitions while a converter is waited for.

    Args:
        program: The edge program before lowering.
        plan: Its partitions.
        samples: As for `boundary_values`.

    Returns:
        `boundary_values` of the partitions that were made, which executes the program if nobody has waited, or where
        their boundaries are others.
    """
    computed: list[tuple[set[str], list[dict[str, torch.Tensor]]]] = []

    def compute() -> None:
        with suppress(Exception):  # what fails here fails again
            names = _planned_boundary(program, plan)
            computed.append((names, _values(program, names, samples)))

    def values(parts: Sequence[Subgraph]) -> list[dict[str, torch.Tensor]]:
        names, found = computed[0] if computed else (set(), [])
        return found if computed and names >= _boundary(parts) else boundary_values(program, parts, samples)

    with work_while_waiting(compute):
        yield values


def _boundary(parts: Sequence[Subgraph]) -> set[str]:
    return {name for part in parts for name in (*part.sources, *(node.name for node in part.outputs))}


def _planned_boundary(program: ExportedProgram, plan: DelegationPlan) -> set[str]:
    """`_boundary` of the partitions that are to be made."""
    partition = {node.name: node.partition for node in plan.nodes}
    constants = constant_names(program)
    crossing = [
        (source.name, partition.get(source.name), partition.get(node.name))
        for node in program.graph.nodes
        if node.op == "call_function"
        for source in node.all_input_nodes
    ]
    return {name for name, *two in crossing if two[0] != two[1] and name not in constants}


def _values(program: ExportedProgram, names: set[str], samples: Sequence[Inputs]) -> list[dict[str, torch.Tensor]]:
    execute = NodeValues(program, names | {node.name for node in returned_nodes(program)}, keeps_state=True)
    return [execute(sample) for sample in samples]


def all_values(program: ExportedProgram, part: Subgraph, samples: Sequence[Inputs]) -> list[dict[str, torch.Tensor]]:
    """Values of all nodes of `part`: for every sample, and for inputs that reach both ends of their ranges if it can.

    Those of its inputs have the names that they have in `program`, as in `boundary_values`.
    """
    given = boundary_values(program, [part], samples)
    execute = NodeValues(part.program, {node.name for node in part.program.graph.nodes})
    inputs = [[values[name] for name in part.sources] for values in given]
    tried = (*inputs, *_reaching_both_ends(part, inputs))
    return [execute(values) | dict(zip(part.sources, values, strict=True)) for values in tried]


def _reaching_both_ends(part: Subgraph, inputs: Sequence[Sequence[torch.Tensor]]) -> list[list[torch.Tensor]]:
    """Synthetic inputs, unless the quantized program cannot execute them, such as an index beyond a table."""
    if not part.inputs or not inputs:
        return []
    made = part.synthetic_inputs(inputs, _SEED)
    try:
        execute = NodeValues(part.program, ())
        for drawn in made:
            execute(drawn)
    except Exception as error:  # whatever an operator raises on inputs that no sample has
        if is_of_host(error):
            raise
        return []
    return made


def check_partition(
    part: Subgraph,
    compiled: Sequence[CompiledPartition],
    twins: SharedTwins,
    samples: Sequence[Values],
    *,
    synthetic: bool = True,
    tried: Tried | None = None,
) -> PartitionConformance:
    """Execute a compiled partition and the subgraph that it replaces, and compare their outputs.

    In a fork first, unless this process is started again after a crash: runtimes and twins are native code, of which
    some ends its process.

    TOSA twins are executed by the exact executor, in a thirtieth of the reference model's time. The reference model
    decides where a partition does not conform, so that a fault of that executor is never taken for one of the backend;
    evaluate compares the two.

    Args:
        part: The subgraph with the payload.
        compiled: The program's partitions. A LiteRT twin is executed by all of KERNELS: the subgraph decides which of
            them are right. Where the first of them conform, the others, which are slower, are compared on one input,
            which reaches both ends of its range.
        twins: Their host twins.
        samples: For every sample the values of at least the part's inputs and outputs.
        synthetic: Whether to try inputs, too, that reach both ends of their ranges.
        tried: What `executing_ahead` tries, of which it has computed a part.

    Raises:
        PartitionExecutionError: it ends its process.
        LowerdeckError: this host cannot execute the partition.
    """
    if not part.is_static:
        raise LowerdeckError("its tensors vary in size")
    check = partial(_conformance, compiled, twins, tried or Tried(part, samples, synthetic=synthetic))
    _try_in_fork(part, check)
    return check()


def _kernels(part: Subgraph, compiled: Sequence[CompiledPartition]) -> tuple[Resolver, ...]:
    """The sets of kernels that may execute a partition: one that is ignored where LiteRT does not."""
    has_kernels = any(each.payload == part.payload and each.twin_format == "litert" for each in compiled)
    return KERNELS[: None if has_kernels else 1]


@contextmanager
def executing_ahead(
    parts: Sequence[Subgraph], compiled: Sequence[CompiledPartition], twins: SharedTwins, samples: Sequence[Values]
) -> Iterator[Mapping[str, Tried]]:
    """Meanwhile, execute LiteRT twins on the inputs that `check_partition` tries, which then finds what they computed.

    LiteRT leaves Python to other threads, and goes on while this one computes what the inputs that no sample has should
    give. Only where this process is started again after a crash: elsewhere a partition is tried in a fork first.

    Args:
        parts: What all partitions replace.
        compiled: The program's partitions.
        twins: Their host twins.
        samples: As for `check_partition`.

    Returns:
        What is tried, by the tag of the partition.
    """
    if not os.environ.get(RERUN):
        yield {}
        return
    executed = [
        Tried(part, samples, synthetic=True) for part in parts if part.is_static and len(_kernels(part, compiled)) > 1
    ]

    def execute(kernels: Resolver) -> Iterator[None]:
        for tried in executed:
            yield
            program = open_alone(tried.part, twins, kernels)
            for given in tried.inputs if kernels == KERNELS[0] else tried.inputs[tried.last]:
                yield
                program(*given)

    with _meanwhile(*map(execute, KERNELS)):  # one twin serves equal partitions, so that only kernels are apart
        yield {tried.part.tag: tried for tried in executed}
        for tried in executed:
            with suppress(Exception):  # what fails here fails again in the check
                _ = tried.expected


@contextmanager
def _meanwhile(*series: Iterator[None]) -> Iterator[None]:
    """Take the steps of each of `series` in a thread of its own, all of them unless the block fails.

    An error in the block, or Ctrl-C, waits for the steps that have begun, and no others begin. Errors of steps are
    dropped: what fails here fails again in the check.
    """
    is_over = Event()

    def take(steps: Iterator[None]) -> None:
        for _ in steps:
            if is_over.is_set():
                return

    with ThreadPoolExecutor(max_workers=len(series)) as threads:
        try:
            taken = [threads.submit(take, steps) for steps in series]
            yield
            wait(taken)
        finally:
            is_over.set()


class Tried:
    """The inputs that a partition is tried on, and what the subgraph that it replaces computes for them."""

    def __init__(self, part: Subgraph, samples: Sequence[Values], *, synthetic: bool) -> None:
        """Compute nothing yet; see `check_partition` for the arguments."""
        self.part, self._samples, self._synthetic = part, samples, synthetic
        self._rounded: dict[tuple[int, int], Values] = {}

    @cached_property
    def _seen(self) -> list[list[torch.Tensor]]:
        return [[sample[name] for name in self.part.sources] for sample in self._samples]

    @cached_property
    def _drawn(self) -> list[list[torch.Tensor]]:
        return self.part.synthetic_inputs(self._seen, _SEED) if self._synthetic and self.part.inputs else []

    @property
    def inputs(self) -> list[list[torch.Tensor]]:
        """Those of the samples, and those that reach both ends of their ranges."""
        return [*self._seen, *self._drawn]

    @property
    def last(self) -> slice:
        """Which of them all sets of kernels execute."""
        return slice(-max(1, len(self._drawn)), None)

    @cached_property
    def _execute(self) -> NodeValues:
        return NodeValues(self.part.program, {node.name for node in self.part.outputs})

    @cached_property
    def expected(self) -> list[list[torch.Tensor]]:
        """Its outputs for all inputs."""
        computed = [*self._samples, *map(self._execute, self._drawn)]
        return [[values[node.name] for node in self.part.outputs] for values in computed]

    def rounded(self, draw: int, place: int) -> Values:
        """Its outputs for one of `inputs`, its integers rounded in another way."""
        if (draw, place) not in self._rounded:
            self._rounded[draw, place] = self._execute(self.inputs[place], rounding_noise(draw))
        return self._rounded[draw, place]


def _conformance(compiled: Sequence[CompiledPartition], twins: SharedTwins, tried: Tried) -> PartitionConformance:
    """`check_partition`, in this process."""
    part, inputs = tried.part, tried.inputs
    programs = {name: open_alone(part, twins, name) for name in _kernels(part, compiled)}
    has_kernels = len(programs) > 1
    first, *others = programs.values()

    def execute_others() -> Iterator[None]:
        for program, given in product(others, inputs[tried.last]):
            yield
            program(*given)

    # The other sets of kernels are slow, and LiteRT leaves Python to other threads. Twins remember what they computed.
    with _meanwhile(execute_others()):
        expected = tried.expected
        results = first.calls(inputs) if not has_kernels else [first(*given) for given in inputs]

    def rounded_output(index: int, name: str, which: slice, draw: int, place: int) -> Pair:
        place = range(len(inputs))[which][place]
        return expected[place][index], tried.rounded(draw, place)[name]

    def conformance(
        results: Sequence[Sequence[torch.Tensor]], which: slice = _ALL, known: Sequence[OutputError] = ()
    ) -> PartitionConformance:
        outputs = tuple(
            output_error(
                node.name,
                [(wanted[index], result[index]) for wanted, result in zip(expected[which], results, strict=True)],
                scale_of(node),
                part.depth,
                precision=precision_of(part.program.graph),
                known=known[index] if known else None,
                rounded=[partial(rounded_output, index, node.name, which, draw) for draw in range(ROUNDING_DRAWS)],
            )
            for index, node in enumerate(part.outputs)
        )
        return PartitionConformance(partition=part.tag, depth=part.depth, outputs=outputs)

    found = [conformance(results)]
    if not has_kernels:
        if found[0].conforms or not first.is_cross_checkable():
            return found[0]
        return conformance([first(*given) for given in inputs])
    which = tried.last if found[0].conforms else _ALL
    known = found[0].outputs if found[0].conforms else ()  # what rounding explains does not depend on the kernels
    found += (conformance([program(*given) for given in inputs[which]], which, known) for program in others)
    best = next((each for each in found if each.conforms), found[0])
    return replace(best, kernels={name: each.worst for name, each in zip(programs, found, strict=True)})


def check_executes(
    part: Subgraph,
    compiled: Sequence[CompiledPartition],
    twins: SharedTwins,
    samples: Sequence[Values],
    *,
    synthetic: bool = True,
) -> None:
    """Execute a compiled partition by its reference, if this host has something to execute it by.

    In a fork first, as in `check_partition`.

    Args:
        part: The subgraph with the payload.
        compiled: The program's partitions.
        twins: Their host twins.
        samples: For every sample the values of at least the part's inputs; zeros are tried, too.
        synthetic: Whether to try inputs, too, that reach both ends of their ranges.

    Raises:
        PartitionExecutionError: its runtime or host twin fails on it, or ends the process.
    """
    if not part.is_static or (part.payload not in twins and missing_delegates({part.lowered.backend_id})):
        return
    values = [node.meta["val"] for node in part.inputs]
    tried = [[sample[name] for name in part.sources] for sample in samples]
    tried += _reaching_both_ends(part, tried) if synthetic else []
    tried.insert(0, [torch.zeros(value.shape, dtype=value.dtype) for value in values])

    def execute(kernels: Resolver = "reference") -> None:
        program = open_alone(part, twins, kernels)
        for given in tried:
            program(*given)

    for kernels in _kernels(part, compiled):
        _try_in_fork(part, partial(execute, kernels))
    try:
        execute()
    except Exception as error:  # whatever a library raises on it
        if is_of_host(error):
            raise
        failure = str(error).splitlines()[0] if isinstance(error, LowerdeckError) else library_errors.described(error)
        raise _not_executed(part, failure) from error


def _try_in_fork(part: Subgraph, execute: Callable[[], object]) -> None:
    """Execute a partition where it may end its process, unless somebody then starts this one again.

    Raises:
        MemoryError: it had no memory left there, which says nothing about the partition.
        PartitionExecutionError: it ends its process.
    """
    if os.environ.get(RERUN) or not hasattr(os, "fork"):
        return
    crash = None
    with suppress(TimeoutError):  # which says nothing about the partition
        crash = crash_in_fork(execute, _TRIAL_S)
    if crash is not None:
        raise _not_executed(part, f"it ends its process ({crash})")


def _not_executed(part: Subgraph, failure: str) -> PartitionExecutionError:
    count = sum(is_compute(node) for node in part.program.graph.nodes)
    message = f"partition {part.tag} ({count} operators) was compiled into what cannot be executed: {failure}"
    return PartitionExecutionError(message, part.nodes, failure)


def rounding_noise(draw: int = 1) -> RoundingSteps:
    """Steps for NodeValues, always the same for a draw, of which there are ROUNDING_DRAWS, the mildest first."""
    return RoundingSteps(_SEED + draw, mildness=1 if draw else _MILDNESS)


def returned_nodes(program: ExportedProgram) -> list[torch.fx.Node]:
    """The nodes whose results the program returns."""
    return [node for node in output_nodes(program) if isinstance(node, torch.fx.Node)]


def shared_twins(partitions: Sequence[CompiledPartition]) -> SharedTwins:
    """The host twins of a program's partitions, for its checks."""
    return SharedTwins(twins_by_payload(partitions))


def twins_by_payload(partitions: Sequence[CompiledPartition]) -> dict[bytes, bytes]:
    """Payload -> host twin, of the partitions that have one."""
    return {partition.payload: partition.twin for partition in partitions if partition.twin is not None}
