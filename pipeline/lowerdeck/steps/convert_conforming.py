"""Step convert, checked: partitions are executed beside what they replace, and operators to blame stay on the CPU.

Operators are to blame where the backend computes something else than the quantized model, or fails to compile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lowerdeck.conformance.bisection import (
    MAX_TOGETHER,
    Culprit,
    PieceCompiler,
    culprit_of,
    operators_in,
    uncompilable_pieces,
)
from lowerdeck.conformance.partitions import (
    KERNELS,
    Inputs,
    Tried,
    Values,
    all_values,
    boundary_values_ahead,
    check_executes,
    check_partition,
    executing_ahead,
    shared_twins,
)
from lowerdeck.conformance.programs import program_errors
from lowerdeck.conformance.subgraphs import Subgraph
from lowerdeck.conformance.units import Unit
from lowerdeck.contracts.backends import Backend
from lowerdeck.contracts.conformance import ConformanceSettings, OutputError, PartitionConformance
from lowerdeck.contracts.errors import (
    ConversionError,
    LowerdeckError,
    PartitionCompilationError,
    PartitionExecutionError,
    ProgramError,
    is_full_memory,
)
from lowerdeck.contracts.memories import Memory
from lowerdeck.contracts.plan import DelegationPlan, Reason, ReasonCode, listed
from lowerdeck.delegation.exclusion import IN_LIBRARY
from lowerdeck.graph.preserved_operators import decompose_faulty
from lowerdeck.runtime.floats import FloatProgram
from lowerdeck.runtime.loading import open_with_twins
from lowerdeck.runtime.shared_twins import SharedTwins
from lowerdeck.steps.convert import Converted, compile_partitions, emit
from lowerdeck.steps.device_faults import (
    described_nodes,
    deviations,
    missing_operators,
    refusal,
    refused_calls,
    refused_layouts,
)
from lowerdeck.steps.partition import replan

if TYPE_CHECKING:
    from executorch.exir import EdgeProgramManager
    from torch.export import ExportedProgram

_MOST_ADDED_UP = 2.0
"""Largest error, relative to its bound, of a deep partition whose operators conform one by one, or of a program whose
partitions do."""
_SHORT = 16
"""Most units of a piece that does not compile, of which any may be kept off. A mean over four dimensions has five."""
_TOGETHER = "together"
"""Key in the values of a reason: of how many units."""
_FAILS = {
    PartitionCompilationError: "the backend's compiler fails on",
    PartitionExecutionError: "its runtime, or its host twin, fails on what the backend's compiler makes of",
}
WAYS_OUT = (
    "Keep the operator off the delegate (target.options.nodes_not_to_delegate), let convert find and exclude it "
    "(evaluation.conformance.on_mismatch: exclude), or accept the result (on_mismatch: warn)"
)


@dataclass(frozen=True, kw_only=True)
class ConvertedConforming:
    """A program whose partitions were checked."""

    converted: Converted
    plan: DelegationPlan
    """The plan that it was lowered by: the given one, without the operators that computed something else, and with the
    mismatches that the settings accept."""
    partitions: tuple[PartitionConformance, ...]
    """Agreement of every partition that this host can execute."""
    accumulating: frozenset[str]
    """Tags of those whose error exceeds its bound although every piece conforms."""
    unchecked: tuple[str, ...]
    """Why partitions, or the whole program, were not checked, one line each."""
    outputs: tuple[OutputError, ...] = ()
    """Errors of the whole program's outputs, relative to the edge program."""


def convert_conforming(
    manager: EdgeProgramManager,
    plan: DelegationPlan,
    backend: Backend,
    samples: Sequence[Inputs],
    workdir: Path,
    settings: ConformanceSettings,
    report: Callable[[str], None],
    banks: Sequence[Memory] = (),
) -> ConvertedConforming:
    """Lower an edge program, and keep operators on the CPU that compute something else on the delegate.

    Args:
        manager: Edge program from partition.
        plan: Decisions of partition.
        backend: The backend that partition used.
        samples: Inputs of the model to try; calibration samples.
        workdir: Empty folder for the converter's files.
        settings: What to do about a partition that computes something else.
        report: Shows a line to the user.
        banks: See `emit`.

    Raises:
        ConversionError: a partition computes something else or is not compiled, and `settings` or the means found
            forbid to go on.
        LowerdeckError: see `compile_partitions` and `emit`.
    """
    samples, faulty, accumulating = samples[: settings.num_samples], dict[str, Reason](), set[frozenset[str]]()
    accepted, examined = plan.mismatches, set[frozenset[str]]()
    for round_number in range(settings.max_rounds + 1):
        may_exclude = settings.on_mismatch == "exclude" and round_number < settings.max_rounds
        folder = workdir / f"round_{round_number}"
        folder.mkdir()
        replaced: Sequence[Subgraph] = ()
        try:
            with boundary_values_ahead(manager.exported_program(), plan, samples) as values_of_parts:
                compiled = compile_partitions(manager, plan, backend, folder, faulty)
            replaced, twins = compiled.replaced, shared_twins(compiled.partitions)
            values = values_of_parts(replaced)
            with executing_ahead(replaced, compiled.partitions, twins, values) as tried:
                converted = emit(compiled, banks)
            checked, unchecked, failed = _checked(converted, twins, values, tried, report)
        except PartitionCompilationError as error:
            failed = [error, *error.others]
        if failed:
            pieces = [PieceCompiler(manager, backend, folder / f"pieces_{n}", faulty) for n in range(len(failed))]
            kept = _uncompilable(failed, pieces, manager.exported_program(), replaced, samples, plan, report)
            if not may_exclude:
                raise _not_compiled_error(failed[0], kept, plan, settings) from failed[0]
            faulty = decompose_faulty(manager.exported_program(), faulty | _on_cpu(kept, plan, report))
            plan = replan(manager, backend, faulty)
            continue
        result = ConvertedConforming(
            converted=converted,
            plan=plan,
            partitions=tuple(found for _, found in checked),
            accumulating=frozenset(part.tag for part, _ in checked if part.nodes in accumulating),
            unchecked=tuple(unchecked),
        )
        pieces_of = partial(_piece_compiler, manager, backend, folder, faulty)
        values_of = partial(all_values, manager.exported_program(), samples=samples)
        search = partial(_hidden_culprits, examined=examined, pieces_of=pieces_of, values_of=values_of, report=report)
        hidden = search([(part, found) for part, found in checked if found.conforms and found.is_loose])
        mismatches = _mismatches(checked, hidden, accumulating, report)
        if not mismatches or settings.on_mismatch == "warn":
            accepted += tuple(f"partition {found.partition}: {found.worst}" for _, found in mismatches)
            result = replace(result, plan=replace(plan, mismatches=accepted, layers=converted.layers))
            for line in unchecked:
                report(line)
            finished = _with_program_checked(
                result, twins, manager, samples, values, settings, report, may_exclude, partial(search, checked)
            )
            if isinstance(finished, ConvertedConforming):
                return finished
            faulty |= _on_cpu(finished, plan, report)
        elif not may_exclude:
            raise _not_conforming_error([found for _, found in mismatches], settings)
        else:
            wrong, without = _to_blame(mismatches, hidden, pieces_of, values_of, plan, report)
            faulty |= wrong
            accumulating |= without
        faulty = decompose_faulty(manager.exported_program(), faulty)
        plan = replan(manager, backend, faulty)
    raise AssertionError("the loop ends in a return or an error")


def _checked(
    converted: Converted,
    twins: SharedTwins,
    values: Sequence[Values],
    tried: Mapping[str, Tried],
    report: Callable[[str], None],
) -> tuple[list[tuple[Subgraph, PartitionConformance]], list[str], list[PartitionCompilationError]]:
    """Every part with its agreement, why parts were not checked, and why parts cannot be executed."""
    checked, unchecked, failed = [], [], list[PartitionCompilationError]()
    for part in converted.replaced:
        try:
            checked.append(
                (part, check_partition(part, converted.partitions, twins, values, tried=tried.get(part.tag)))
            )
        except PartitionExecutionError as failure:
            failed.append(failure)
        except Exception as error:  # a check that fails shows nothing about a program that can be executed
            what = str(error) if isinstance(error, LowerdeckError) else repr(error)
            try:
                check_executes(part, converted.partitions, twins, values)
                unchecked.append(f"partition {part.tag} was not checked: {what}")
            except PartitionExecutionError as failure:
                failed.append(failure)
    for _, found in checked:
        for name, worst in found.wrong_kernels.items():
            report(
                f"partition {found.partition}: LiteRT's {name} kernels compute something else than the quantized "
                f"model, {worst}; this host executes it by kernels that agree"
            )
    return checked, unchecked, failed


def _with_program_checked(
    result: ConvertedConforming,
    twins: SharedTwins,
    manager: EdgeProgramManager,
    samples: Sequence[Inputs],
    values: Sequence[Values],
    settings: ConformanceSettings,
    report: Callable[[str], None],
    may_exclude: bool,
    search: Callable[[], Mapping[frozenset[str], Culprit]],
) -> ConvertedConforming | dict[str, Reason]:
    """`result` with the errors of the whole `.pte`: what the CPU computes around partitions, and at its boundary.

    Where `may_exclude`, the reasons of nodes that a kernel library computes wrongly instead, if there are any, or those
    of operators that only a `search` of all partitions finds.

    Raises:
        ConversionError: the program computes something else, although its partitions conform, or the device cannot
            execute it, and this is not accepted.
    """
    converted = result.converted
    if faults := [*missing_operators(converted, result.plan), *refused_layouts(converted, result.plan)]:
        return _with_faults(result, faults, settings, report)
    try:
        if converted.data_files:
            raise LowerdeckError("its constants are in files of their own")
        wrong_kernels = {name for found in result.partitions for name in found.wrong_kernels}
        resolver = next((name for name in KERNELS if name not in wrong_kernels), None)
        if resolver is None:
            raise LowerdeckError("its partitions need different kernels of LiteRT")
        opened = open_with_twins(converted.program, twins.opener(resolver), converted.kernel_definitions)
        program = FloatProgram(opened, converted.inputs, converted.outputs)
        faults = refused_calls(converted, program, twins.opener(resolver), samples[0], result.plan) if samples else []
        edge = manager.exported_program()
        how = edge, samples, values, converted.output_scales, result.partitions
        is_exact = any(part.twin_format == "tosa" for part in converted.partitions) and opened.is_cross_checkable()
        errors = () if faults else program_errors(program.calls if is_exact else program.consecutive_calls, *how)
        if is_exact and any(error.excess > 1 for error in errors):
            errors = program_errors(program.consecutive_calls, *how)  # as for a partition, the reference decides
        deviating = [] if faults or not samples else deviations(converted, program, edge, samples[0], result.plan)
    except Exception as error:  # as above
        what = str(error) if isinstance(error, LowerdeckError) else repr(error)
        is_of_program = isinstance(error, ProgramError) and not is_full_memory(error)
        if is_of_program and not converted.delegates:  # nothing that only the device can execute
            return _with_faults(result, [what], settings, report)
        report(f"the program was not checked as a whole: {what}")
        return replace(result, unchecked=(*result.unchecked, f"the program was not checked as a whole: {what}"))
    if faults:
        return _with_faults(result, faults, settings, report)
    if may_exclude and (reasons := _wrong_kernels(deviating, result.plan)):
        return reasons
    if deviating or settings.on_mismatch == "warn" or not _is_unexplained(result, errors):
        return _with_errors(result, errors, deviating, settings, report)
    return _with_pieces_compared(result, errors, settings, report, may_exclude, search)


def _with_pieces_compared(
    result: ConvertedConforming,
    errors: Sequence[OutputError],
    settings: ConformanceSettings,
    report: Callable[[str], None],
    may_exclude: bool,
    search: Callable[[], Mapping[frozenset[str], Culprit]],
) -> ConvertedConforming | dict[str, Reason]:
    """`result` with the program's errors, which exceed their bounds although every partition conforms.

    The errors of a piece that is wrong may be within those that rounding explains of its whole partition, and those of
    several partitions may add up. Where `may_exclude`, the reasons of what `search` finds instead, if there is any.

    Raises:
        ConversionError: an operator is to blame, and cannot be excluded, or none is.
    """
    wrong = [str(error) for error in errors if error.excess > 1]
    if result.partitions:
        report(f"the program: {'; '.join(wrong)}, although every partition conforms: comparing pieces of them")
    hidden = search()
    if hidden and not may_exclude:
        raise _not_conforming_error([culprit.conformance for culprit in hidden.values()], settings)
    if hidden:
        return {
            node: reason for found in hidden.values() for node, reason in _wrong_results(found, result.plan).items()
        }
    if not result.partitions or any(error.excess > _MOST_ADDED_UP for error in errors):
        return _with_errors(result, errors, (), settings, report)
    report("every piece agrees within rounding, so that rounding errors add up")
    return replace(result, outputs=tuple(errors))


def _is_unexplained(result: ConvertedConforming, errors: Sequence[OutputError]) -> bool:
    """Whether the program's error exceeds what rounding explains, and no partition accounts for it."""
    is_accounted = result.accumulating or not all(found.conforms for found in result.partitions)
    return not is_accounted and any(error.excess > 1 for error in errors)


def _wrong_kernels(deviating: Sequence[tuple[Collection[str], OutputError]], plan: DelegationPlan) -> dict[str, Reason]:
    """The reason of every node that stays on portable kernels because a kernel library computes it wrongly."""
    reasons = dict[str, Reason]()
    for names, error in deviating:
        for node in plan.nodes:
            if node.name in names and node.compute and node.processor in plan.libraries:
                message = f"the kernel library computes something else: {error}"
                values = {**_measured(error), IN_LIBRARY: node.processor}
                reasons[node.name] = Reason(
                    code=ReasonCode.WRONG_RESULT, message=message, check="convert", values=values
                )
    return reasons


def _with_errors(
    result: ConvertedConforming,
    errors: Sequence[OutputError],
    deviating: Sequence[tuple[Sequence[str], OutputError]],
    settings: ConformanceSettings,
    report: Callable[[str], None],
) -> ConvertedConforming:
    """`result` with the errors of the whole program, or their refusal."""
    plan = result.plan
    wrong = [str(error) for error in errors if error.excess > 1] if _is_unexplained(result, errors) else []
    if deviating:
        names, error = deviating[0]
        wrong.append(f"the first kernel to deviate {described_nodes(names, plan)}: {error}")
    if wrong:
        message = f"the program computes something else than the quantized model: {'; '.join(wrong)}"
        if settings.on_mismatch != "warn":
            raise ConversionError(
                f"{message}\nEvery partition conforms, so that the difference arises on the CPU, or where tensors pass "
                "between it and the delegate. Keep the operators there in float (quantization.keep_float), or accept "
                "the result (evaluation.conformance.on_mismatch: warn)"
            )
        report(message)
        result = replace(result, plan=replace(plan, mismatches=(*plan.mismatches, f"program: {'; '.join(wrong)}")))
    return replace(result, outputs=tuple(errors))


def _with_faults(
    result: ConvertedConforming, faults: Sequence[str], settings: ConformanceSettings, report: Callable[[str], None]
) -> ConvertedConforming:
    """`result` with the faults of kernels on the CPU, or their refusal."""
    if settings.on_mismatch != "warn":
        raise refusal(faults)
    for fault in faults:
        report(fault)
    return replace(result, plan=replace(result.plan, mismatches=(*result.plan.mismatches, *faults)))


def _piece_compiler(
    manager: EdgeProgramManager, backend: Backend, folder: Path, faulty: Mapping[str, Reason], part: Subgraph
) -> PieceCompiler:
    """Compiles pieces of a partition in this round's folder."""
    return PieceCompiler(manager, backend, folder / f"pieces_{part.tag}", faulty)


def _hidden_culprits(
    checked: Sequence[tuple[Subgraph, PartitionConformance]],
    examined: set[frozenset[str]],
    pieces_of: Callable[[Subgraph], PieceCompiler],
    values_of: Callable[[Subgraph], Sequence[Values]],
    report: Callable[[str], None],
) -> dict[frozenset[str], Culprit]:
    """What computes something else in partitions whose own errors show nothing, by the partition's nodes.

    Args:
        checked: Partitions that conform.
        examined: Nodes of those that were searched before; those searched here are added.
        pieces_of: Makes a compiler of pieces.
        values_of: Values of all nodes, by sample.
        report: Shows a line to the user.
    """
    found = {}
    for part, conformance in checked:
        if part.nodes in examined:
            continue
        examined.add(part.nodes)
        worst = max(conformance.outputs, key=lambda output: (output.is_loose, output.sensitivity))
        report(f"partition {part.tag}: {worst}, which could hide a wrong operator: comparing pieces of it")
        culprit = culprit_of(part, pieces_of(part), values_of(part), hiding=conformance)
        if culprit is None:
            report(f"partition {part.tag}: every piece of it agrees within rounding")
        else:
            found[part.nodes] = replace(culprit, conformance=replace(culprit.conformance, partition=part.tag))
    return found


def _mismatches(
    checked: Sequence[tuple[Subgraph, PartitionConformance]],
    hidden: Mapping[frozenset[str], Culprit],
    accumulating: Collection[frozenset[str]],
    report: Callable[[str], None],
) -> list[tuple[Subgraph, PartitionConformance]]:
    """The partitions that compute something else, with their agreement, or that of the piece that hid in them."""
    wrong = [(part, found) for part, found in checked if not found.conforms and part.nodes not in accumulating]
    wrong += ((part, hidden[part.nodes].conformance) for part, _ in checked if part.nodes in hidden)
    for _, found in wrong:
        report(f"partition {found.partition} computes something else than the quantized model: {found.worst}")
    return wrong


def _culprit(
    part: Subgraph, found: PartitionConformance, pieces: PieceCompiler, samples: Sequence[Values]
) -> Culprit | None:
    """The piece that makes a partition wrong; None where errors within rounding only add up to a little more.

    Raises:
        ConversionError: the partition is far from what it replaces, and every piece of it conforms.
    """
    may_add_up = found.worst.excess <= _MOST_ADDED_UP
    culprit = culprit_of(part, pieces, samples, MAX_TOGETHER if may_add_up else len(part.nodes))
    if culprit is None and not may_add_up:
        raise ConversionError(
            f"partition {found.partition} computes something else than the quantized model, although each of its "
            f"operators conforms on its own: {found.worst}\nKeep some of its operators on the CPU "
            "(target.options.modules_not_to_delegate), or accept the result (evaluation.conformance.on_mismatch: warn)"
        )
    return culprit


def _to_blame(
    mismatches: Sequence[tuple[Subgraph, PartitionConformance]],
    hidden: Mapping[frozenset[str], Culprit],
    pieces_of: Callable[[Subgraph], PieceCompiler],
    values_of: Callable[[Subgraph], Sequence[Values]],
    plan: DelegationPlan,
    report: Callable[[str], None],
) -> tuple[dict[str, Reason], set[frozenset[str]]]:
    """The reasons of nodes that make partitions wrong, and the nodes of partitions whose errors only add up."""
    reasons, accumulating = dict[str, Reason](), set[frozenset[str]]()
    for part, found in mismatches:
        culprit = hidden.get(part.nodes)
        if culprit is None:
            report(f"partition {part.tag}: looking for the operator to blame")
            culprit = _culprit(part, found, pieces_of(part), values_of(part))
        wrong = {} if culprit is None else _wrong_results(culprit, plan)
        accumulating |= {part.nodes} if not wrong else set()
        reasons |= _on_cpu(wrong, plan, report)
    return reasons, accumulating


def _wrong_results(culprit: Culprit, plan: DelegationPlan) -> dict[str, Reason]:
    """The reason of every computing node that has to stay on the CPU because its result is wrong."""
    worst = culprit.conformance.worst
    message = f"on the delegate it computes something else{_together(culprit.units)}: {worst}"
    reason = Reason(code=ReasonCode.WRONG_RESULT, message=message, check="convert", values=_measured(worst))
    return dict.fromkeys(_cheapest(culprit.units, plan), reason)


def _measured(error: OutputError) -> dict[str, float | str]:
    """The values of a reason."""
    measured = {"max_error": error.max_error, "mean_error": error.mean_error}
    return {name: value for name, value in measured.items() if math.isfinite(value)} | {"unit": str(error.unit)}


def _uncompilable(
    failed: Sequence[PartitionCompilationError],
    compilers: Sequence[PieceCompiler],
    program: ExportedProgram,
    replaced: Sequence[Subgraph],
    samples: Sequence[Inputs],
    plan: DelegationPlan,
    report: Callable[[str], None],
) -> dict[str, Reason]:
    """The reason of every node that has to stay on the CPU because it is not compiled, or not executed.

    Args:
        failed: How partitions failed; those that this host cannot execute all at once, so that one round excludes all.
        compilers: For each of them what compiles its pieces.
        program: The edge program.
        replaced: The partitions of a program that was compiled.
        samples: Inputs of the model.
        plan: Decisions of partition.
        report: Shows a line to the user.

    Raises:
        ConversionError: no operator of a partition is to blame.
    """
    found: dict[str, Reason] = {}
    suspected = set[tuple[str, ...]]()
    earlier = (node.reason.values.get(_TOGETHER, 0) for node in plan.nodes if node.reason is not None)
    # A partition that is too large would lose one operator a round.
    has_split = any(isinstance(count, int) and count > _SHORT for count in earlier)
    for error, compiler in zip(failed, compilers, strict=True):
        report(str(error))
        parts = [part for part in replaced if part.nodes == error.nodes]
        tried = all_values(program, parts[0], samples) if isinstance(error, PartitionExecutionError) else ()
        kept: dict[str, Reason] = {}
        for units in uncompilable_pieces(error, compiler, program, tried, suspected):
            suspected |= {operators_in(units[0], program.graph)} if len(units) == 1 else set()
            if len(units) > _SHORT and has_split:
                continue
            message = f"{_FAILS[type(error)]} it{_together(units)}: {error.failure}"
            values = {_TOGETHER: len(units)}
            reason = Reason(code=ReasonCode.NOT_COMPILED, message=message, check="convert", values=values)
            # Of a long run, only that it compiles without one of its ends is known.
            ends = units if len(units) <= _SHORT else [units[0], units[-1]]
            kept |= dict.fromkeys(_cheapest(ends, plan), reason)
        if not kept:
            raise _not_compiled_error(error, kept, plan) from error
        found |= kept
    return found


def _cheapest(units: Sequence[Unit], plan: DelegationPlan) -> list[str]:
    """Nodes of the unit with the fewest MACs: of units that fail only together it breaks the combination.

    They are its computing nodes; where nothing computes, all that quantizes and dequantizes.
    """
    macs = {node.name: node.macs for node in plan.nodes if node.compute}
    in_units = [[name for name in unit if name in macs] for unit in units]
    computing = min(filter(None, reversed(in_units)), key=lambda unit: sum(map(macs.__getitem__, unit)), default=None)
    return computing or [name for unit in units for name in unit]


def _together(units: Sequence[Unit]) -> str:
    others = len(units) - 1
    return f" together with {others} operator{'s' if others > 1 else ''} around it" if others else ""


def _on_cpu(reasons: dict[str, Reason], plan: DelegationPlan, report: Callable[[str], None]) -> dict[str, Reason]:
    """`reasons`, reported with the places of their nodes in the model."""
    if not reasons:
        report("every piece of it agrees within rounding: the errors of its depth add up")
    for message in dict.fromkeys(reason.message for reason in reasons.values()):
        places = _places([name for name, reason in reasons.items() if reason.message == message], plan)
        report(f"stays on the CPU: {listed(places, 5)}: {message}")
    return reasons


def _places(names: Sequence[str], plan: DelegationPlan) -> list[str]:
    nodes = {node.name: node for node in plan.nodes}
    return [nodes[name].described for name in names]


def _not_conforming_error(mismatches: Sequence[PartitionConformance], settings: ConformanceSettings) -> ConversionError:
    limit = f"after max_rounds: {settings.max_rounds} rounds of exclusions"
    why = "evaluation.conformance.on_mismatch is `fail`" if settings.on_mismatch == "fail" else limit
    lines = "\n".join(f"  partition {found.partition}: {found.worst}" for found in mismatches)
    return ConversionError(
        f"{len(mismatches)} partitions compute something else than the quantized model ({why}):\n{lines}\n{WAYS_OUT}"
    )


def _not_compiled_error(
    error: PartitionCompilationError,
    kept: Mapping[str, Reason],
    plan: DelegationPlan,
    settings: ConformanceSettings | None = None,
) -> ConversionError:
    if not kept:
        return ConversionError(
            f"{error}\nNo operator of the partition is to blame by itself. Keep some of them on the CPU "
            "(target.options.modules_not_to_delegate), or choose another target or converter"
        )
    places = "\n".join(f"  {place}" for place in _places(list(kept), plan))
    by_itself = "evaluation.conformance.on_mismatch: exclude does so by itself, up to max_rounds times"
    if settings is not None and settings.on_mismatch == "exclude":
        by_itself = f"evaluation.conformance.max_rounds: {settings.max_rounds} rounds of exclusions were not enough"
    return ConversionError(
        f"{error}\n{_FAILS[type(error)].capitalize()}\n{places}\nKeep them on the CPU: "
        f"target.options.nodes_not_to_delegate: [{', '.join(kept)}]; {by_itself}"
    )
