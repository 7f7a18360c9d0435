"""Executes every compiled partition beside the subgraph that it replaces, on the same inputs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from itertools import product
from threading import Event
from typing import TYPE_CHECKING, Any

import torch

from lowerdeck.conformance.alone import open_alone
from lowerdeck.conformance.errors import output_error
from lowerdeck.conformance.subgraphs import Subgraph, precision_of, scale_of
from lowerdeck.contracts.conformance import PartitionConformance
from lowerdeck.contracts.errors import LowerdeckError, PartitionExecutionError, is_of_host
from lowerdeck.contracts.lowering import CompiledPartition
from lowerdeck.graph import library_errors
from lowerdeck.graph.io_boundary import output_nodes
from lowerdeck.graph.node_values import NodeValues, RoundingSteps
from lowerdeck.graph.nodes import is_compute
from lowerdeck.runtime.child_processes import RERUN, crash_in_fork
from lowerdeck.runtime.loading import Resolver
from lowerdeck.runtime.native import missing_delegates
from lowerdeck.runtime.shared_twins import SharedTwins

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from lowerdeck.conformance.errors import Pair

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
    names = {name for part in parts for name in (*part.sources, *(node.name for node in part.outputs))}
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

    Raises:
        PartitionExecutionError: it ends its process.
        LowerdeckError: this host cannot execute the partition.
    """
    if not part.is_static:
        raise LowerdeckError("its tensors vary in size")
    check = partial(_conformance, part, compiled, twins, samples, synthetic=synthetic)
    _try_in_fork(part, check)
    return check()


def _kernels(part: Subgraph, compiled: Sequence[CompiledPartition]) -> tuple[Resolver, ...]:
    """The sets of kernels that may execute a partition: one that is ignored where LiteRT does not."""
    has_kernels = any(each.payload == part.payload and each.twin_format == "litert" for each in compiled)
    return KERNELS[: None if has_kernels else 1]


@contextmanager
def executing_ahead(
    parts: Sequence[Subgraph], compiled: Sequence[CompiledPartition], twins: SharedTwins, samples: Sequence[Values]
) -> Iterator[None]:
    """Meanwhile, execute LiteRT twins on the inputs that `check_partition` tries, which then finds what they computed.

    LiteRT leaves Python to other threads. Only where this process is started again after a crash: elsewhere a partition
    is tried in a fork first.

    Args:
        parts: What all partitions replace.
        compiled: The program's partitions.
        twins: Their host twins.
        samples: As for `check_partition`.
    """
    if not os.environ.get(RERUN):
        yield
        return
    executed = [part for part in parts if part.is_static and len(_kernels(part, compiled)) > 1]

    def execute(kernels: Resolver) -> Iterator[None]:
        for part in executed:
            yield
            seen, drawn = _tried(part, samples)
            inputs, program = [*seen, *drawn], open_alone(part, twins, kernels)
            for given in inputs if kernels == KERNELS[0] else inputs[_last(drawn)]:
                yield
                program(*given)

    with _meanwhile(*map(execute, KERNELS)):  # one twin serves equal partitions, so that only kernels are apart
        yield


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


def _tried(part: Subgraph, samples: Sequence[Values], *, synthetic: bool = True) -> tuple[list[Any], list[Any]]:
    """Inputs of `part`: those of the samples, and those that reach both ends of their ranges."""
    seen = [[sample[name] for name in part.sources] for sample in samples]
    return seen, part.synthetic_inputs(seen, _SEED) if synthetic and part.inputs else []


def _last(drawn: Sequence[Any]) -> slice:
    """Which of the inputs all sets of kernels execute."""
    return slice(-max(1, len(drawn)), None)


def _conformance(
    part: Subgraph,
    compiled: Sequence[CompiledPartition],
    twins: SharedTwins,
    samples: Sequence[Values],
    *,
    synthetic: bool,
) -> PartitionConformance:
    """`check_partition`, in this process."""
    programs = {name: open_alone(part, twins, name) for name in _kernels(part, compiled)}
    has_kernels = len(programs) > 1
    seen, drawn = _tried(part, samples, synthetic=synthetic)
    inputs, last = [*seen, *drawn], _last(drawn)
    tried = [(given, [sample[node.name] for node in part.outputs]) for given, sample in zip(seen, samples, strict=True)]
    first, *others = programs.values()

    def execute_others() -> Iterator[None]:
        for program, given in product(others, inputs[last]):
            yield
            program(*given)

    # The other sets of kernels are slow, and LiteRT leaves Python to other threads. Twins remember what they computed.
    with _meanwhile(execute_others()):
        if drawn:
            execute = NodeValues(part.program, {node.name for node in part.outputs})
            computed = [(given, execute(given)) for given in drawn]
            tried += ((given, [values[node.name] for node in part.outputs]) for given, values in computed)
        results = first.calls(inputs) if not has_kernels else [first(*given) for given in inputs]

    @cache
    def rounded(draw: int, place: int) -> Values:
        execute = NodeValues(part.program, {node.name for node in part.outputs}, rounding_noise(draw))
        return execute(tried[place][0])

    def rounded_output(index: int, name: str, which: slice, draw: int, place: int) -> Pair:
        place = range(len(tried))[which][place]
        return tried[place][1][index], rounded(draw, place)[name]

    def conformance(results: Sequence[Sequence[torch.Tensor]], which: slice = _ALL) -> PartitionConformance:
        outputs = tuple(
            output_error(
                node.name,
                [(expected[index], result[index]) for (_, expected), result in zip(tried[which], results, strict=True)],
                scale_of(node),
                part.depth,
                precision=precision_of(part.program.graph),
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
    which = last if found[0].conforms else _ALL
    found += (conformance([program(*given) for given in inputs[which]], which) for program in others)
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
