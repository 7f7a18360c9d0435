"""All metrics of the outputs: those of the task and of fidelity, with 95 % intervals, drops and their draws."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lowerdeck.contracts.tasks import TaskMetric
from lowerdeck.evaluation import fidelity
from lowerdeck.evaluation.defects import NOT_FINITE
from lowerdeck.evaluation.intervals import HIGH, LOW, paired_difference, share_with_interval
from lowerdeck.evaluation.metric_names import DESCRIPTIONS, DROPS, INFINITE, MASKED_SHARE, PRIMARY
from lowerdeck.evaluation.records import ChosenTask, EvaluationRecords
from lowerdeck.evaluation.resampling import Floats, interval, resampled

NOT_MEASURED = "not measured"
"""Replaces the metric of a program that this host cannot execute."""
NOT_DEFINED = "not defined"
"""Replaces a metric that the samples do not define, e.g. the recall of a class that does not occur."""
_LAST_BITS = 1e-12
"""By which share of itself the sums of a metric may be off, for the order in which they are added."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The metrics of a build's outputs."""

    metrics: Mapping[str, Any]
    """Names and values for metrics.json."""
    draws: Mapping[str, Floats]
    """Name -> the metric of every draw of the bootstrap, float64 [draws], where it has no closed form."""
    confusion: Mapping[str, Any]
    """Program -> actual and predicted class of every sample, int64 [n x 2]; empty where the task has no classes."""
    class_names: tuple[str, ...] = ()
    """Names of the classes by index; empty where they have none."""
    pictures: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Program -> its curves and its histogram; empty where the task has none."""


def measure(chosen: ChosenTask, records: EvaluationRecords, missing: str, class_names: Sequence[str] = ()) -> Measured:
    """Compute all metrics.

    Args:
        chosen: The task.
        records: Those of all samples.
        missing: What replaces the task's metrics where its records lack targets.
        class_names: Names of the classes by index, if they have some: metrics of classes are named by them.
    """
    described = _applicable(chosen, records)
    compute = functools.partial(_values, chosen, records, described)
    points = {name: float(values[0]) for name, values in compute(np.ones((1, records.num_samples))).items()}
    closed = _closed_forms(records, described)
    unit = _units(chosen, records)
    drawn = resampled(lambda weights: compute(weights[:, unit]), int(unit.max()) + 1)
    draws = {name: values for name, values in drawn.items() if name not in closed}
    metrics: dict[str, Any] = {"num_samples": records.num_samples}
    for name, value in points.items():
        ends = interval(draws[name]) if name in draws and math.isfinite(value) else None
        metrics[name] = value if math.isfinite(value) else NOT_DEFINED if math.isnan(value) else INFINITE
        metrics |= {name + LOW: ends[0], name + HIGH: ends[1]} if ends else {}
    details = _details(chosen, records, metric_names(class_names))
    metrics |= closed | _agreement(chosen, records) | details | _constants(records) | _not_finite(records)
    executed = set(records.programs)
    for metric in described:
        for program in ("float", "quantized", "delegated"):
            absent = missing if program in executed else NOT_MEASURED
            if not records.has_targets or program not in executed:
                metrics.setdefault(f"{program}_{metric.name}", absent)
    metrics[PRIMARY] = described[0].name if described else "cosine"
    for metric in described:
        metrics[DESCRIPTIONS + metric.name] = f"{metric.better} share" if metric.is_share else metric.better
    return Measured(
        metrics=metrics,
        draws=draws,
        confusion=_of_programs(chosen, records, "confusion"),
        class_names=tuple(class_names),
        pictures=_of_programs(chosen, records, "pictures"),
    )


def metric_names(class_names: Sequence[str]) -> tuple[str, ...]:
    """The names of classes as parts of metrics' names, e.g. `traffic_light`; empty where they would be ambiguous."""
    plain = tuple(re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_") for name in class_names)
    return plain if all(plain) and len(set(plain)) == len(plain) else ()


def _applicable(chosen: ChosenTask, records: EvaluationRecords) -> tuple[TaskMetric, ...]:
    """The task's metrics without those that `measure` leaves out, e.g. top-5 of three classes."""
    described = tuple(chosen.task.metrics(chosen.options))
    if not records.has_targets or not records.task:
        return described
    first = next(iter(records.task.values()))
    found = chosen.task.measure(chosen.options, first, np.ones((1, records.num_samples)))
    return tuple(metric for metric in described if metric.name in found)


def _units(chosen: ChosenTask, records: EvaluationRecords) -> npt.NDArray[np.int64]:
    """The unit of every sample, int64 [n]: what is resampled as a whole."""
    units = getattr(chosen.task, "units", None)
    if units is None or not records.has_targets or not records.task:
        return np.arange(records.num_samples)
    found: npt.NDArray[np.int64] = units(chosen.options, next(iter(records.task.values())))
    return found


def _values(
    chosen: ChosenTask, records: EvaluationRecords, described: tuple[TaskMetric, ...], weights: Floats
) -> dict[str, Floats]:
    """All metrics by name, float64 [b] each, for the weights of samples, float64 [b x n]."""
    values = _fidelity(records, weights)
    if not described:
        cosine = {"float": np.ones(len(weights))}
        cosine |= {name: values[f"{name}_cosine"] for name in ("quantized", "delegated") if f"{name}_cosine" in values}
        return values | _drops("", cosine, 1)
    judged = records.task if records.has_targets else {}
    for program, found in judged.items():
        measured = chosen.task.measure(chosen.options, found, weights)
        values |= {f"{program}_{metric.name}": _without_last_bits(measured[metric.name]) for metric in described}
    for position, metric in enumerate(described):
        of_programs = {name: values[key] for name in judged if (key := f"{name}_{metric.name}") in values}
        suffix = f"_{metric.name}" if position else ""
        values |= _drops(suffix, of_programs, 1 if metric.better == "max" else -1)
    return values


def _drops(suffix: str, of_programs: Mapping[str, Floats], sign: int) -> dict[str, Floats]:
    """How much worse a metric becomes from program to program."""
    return {
        name + suffix: _without_last_bits(sign * _difference(of_programs[before], of_programs[after]) + 0.0)  # no -0
        for name, before, after in DROPS
        if before in of_programs and after in of_programs
    }


def _difference(before: Floats, after: Floats) -> Floats:
    """`before - after`, 0 where they differ in their last bits only."""
    is_none = np.isclose(before, after, rtol=_LAST_BITS, atol=0.0) & np.isfinite(before)
    return np.where(is_none, 0.0, before - after)


def _without_last_bits(values: Any) -> Floats:
    """1 for 0.9999999999999999, and so on for every number of up to six decimals: bounds are such numbers."""
    with np.errstate(over="ignore"):
        short = np.round(values, 6)
    tidied: Floats = np.where(np.isclose(values, short, rtol=_LAST_BITS, atol=0.0), short, values)
    return tidied


def _fidelity(records: EvaluationRecords, weights: Floats) -> dict[str, Floats]:
    """Those of the worst output, and, where there are several, of each one under `outputs.NAME.`.

    SQNR and cosine of integers, such as indices, do not count among the worst.
    """
    values: dict[str, Floats] = {}
    all_integers = all(spec.is_integer for spec in records.specs)
    for pair, outputs in records.fidelity.items():
        of_outputs: dict[str, list[Floats]] = {}
        for spec in records.specs:
            for kind, computed in fidelity.measure(outputs[spec.name], weights).items():
                if (name := _fidelity_name(pair, kind, spec.lsb is not None)) is None:
                    continue
                found = _without_last_bits(computed)
                if not spec.is_integer or kind.startswith(("error", "exact")) or all_integers:
                    of_outputs.setdefault(name, []).append(found)
                if len(records.specs) > 1:
                    values[f"outputs.{spec.name}.{name}"] = found
        for name, several in of_outputs.items():
            worst = np.max if "_error_" in name else np.min
            values[name] = worst(np.stack(several), axis=0)
    return values


def _fidelity_name(pair: str, kind: str, is_quantized: bool) -> str | None:
    """The recorded name of a metric of `fidelity.measure`; None for those of a pair that has no errors in steps."""
    if kind in ("sqnr_db", "cosine"):
        return f"{pair}_{kind}"
    program = next((program for program, compared in fidelity.ERRORS_OF.items() if compared == pair), None)
    if program is None:
        return None
    return f"{program}_{kind}_lsb" if is_quantized and kind.startswith("error") else f"{program}_{kind}"


def _closed_forms(records: EvaluationRecords, described: tuple[TaskMetric, ...]) -> dict[str, float]:
    """Shares of samples and their drops, with intervals that need no resampling."""
    found: dict[str, float] = {}
    for position, metric in enumerate(described if records.has_targets else ()):
        if metric.hits is None:
            continue
        hits = {program: of_program[metric.hits] for program, of_program in records.task.items()}
        for program, of_program in hits.items():
            found |= share_with_interval(f"{program}_{metric.name}", of_program)
        for name, before, after in DROPS:
            if before in hits and after in hits:
                key = f"{name}_{metric.name}" if position else name
                drop, low, high = paired_difference(hits[before], hits[after])
                found |= {key: drop, key + LOW: low, key + HIGH: high}
    return found


def _agreement(chosen: ChosenTask, records: EvaluationRecords) -> dict[str, float]:
    """Shares of samples on which two programs say the same, with their intervals."""
    agreement = getattr(chosen.task, "agreement", None)
    if agreement is None:
        return {}
    found: dict[str, float] = {}
    for program, other in fidelity.PAIRS.values():
        if program in records.task and other in records.task:
            same = agreement(chosen.options, records.task[program], records.task[other])
            found |= share_with_interval(f"{program}_agreement_with_{other}", same)
    return found


def _of_programs(chosen: ChosenTask, records: EvaluationRecords, name: str) -> dict[str, Any]:
    """What the task's function `name` says of every program; empty where it has none, or there are no targets."""
    function = getattr(chosen.task, name, None)
    if function is None or not records.has_targets:
        return {}
    return {program: function(chosen.options, of_program) for program, of_program in records.task.items()}


def _details(chosen: ChosenTask, records: EvaluationRecords, names: Sequence[str]) -> dict[str, float]:
    """Further metrics of the task, e.g. of each class, whose index `names` replace."""
    details = getattr(chosen.task, "details", None)
    if details is None or not records.has_targets:
        return {}
    found: dict[str, float] = {}
    for program, of_program in records.task.items():
        for name, value in details(chosen.options, of_program).items():
            path, dot, last = name.rpartition(".")
            kind, _, number = path.partition(".")
            if kind == "classes" and number.isdecimal() and int(number) < len(names):
                path = f"{kind}.{names[int(number)]}"
            if math.isfinite(value):
                found[f"{path}{dot}{program}_{last}"] = float(_without_last_bits(value))
    return found


def _not_finite(records: EvaluationRecords) -> dict[str, str]:
    """Which outputs of which program are NaN or infinite where the float program's are numbers; empty if none are."""
    found = []
    for program in records.fidelity.keys() & {"quantized", "delegated"}:
        for name, sums in records.fidelity[program].items():
            if num_lost := int((sums["lost"] > 0).sum()):
                found.append(f"{name} of the {program} program for {num_lost} of {records.num_samples} samples")
    return {NOT_FINITE: "; ".join(sorted(found))} if found else {}


def _constants(records: EvaluationRecords) -> dict[str, Any]:
    """Steps of the outputs' quantization, in their units, and the shares of their elements that masks leave out."""
    found: dict[str, Any] = {}
    for spec in records.specs:
        path = f"outputs.{spec.name}." if len(records.specs) > 1 else ""
        if spec.lsb is not None:
            found[f"{path}output_lsb"] = spec.lsb
        for outputs in list(records.fidelity.values())[:1] if spec.masked_numbers else ():
            masked, kept = (float(outputs[spec.name][name].sum()) for name in ("masked", "count"))
            found[f"{path}{MASKED_SHARE}"] = masked / max(masked + kept, 1.0)
    return found
