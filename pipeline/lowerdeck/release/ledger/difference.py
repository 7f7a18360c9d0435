"""Compares two states of the ledger and finds metrics that got worse by more than their tolerance, and new defects."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

from lowerdeck.config.problems import Problem, raise_problems, validate
from lowerdeck.config.schema import NonNegative, Strict
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.release.ledger.entries import Entry, Ledger

INPUT_HASHES = ("dataset", "weights")
"""Hashes of a build's inputs: if one differs, the metrics belong to another model or other samples."""


class ChangeVerdict(StrEnum):
    """Verdict on a change of a metric."""

    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    TOLERATED = "within tolerance"
    CHANGED = "changed"
    """The metric has no tolerance, or is new."""


@dataclass(frozen=True, kw_only=True)
class Tolerance(Strict):
    """How a metric is judged. The wider of both bounds applies."""

    better: Literal["higher", "lower"]
    absolute: NonNegative = 0.0
    """Tolerated deterioration in the metric's own unit."""
    relative: NonNegative = 0.0
    """Tolerated deterioration as a fraction of the earlier value."""

    def verdict(self, before: float, now: float) -> ChangeVerdict:
        """The verdict on a change from `before` to `now`."""
        gain = now - before if self.better == "higher" else before - now
        rounding = 1e-9 * max(abs(before), abs(now))  # 0.9 - 0.895 is slightly more than 0.005
        if abs(gain) <= max(self.absolute, self.relative * abs(before)) + rounding:
            return ChangeVerdict.TOLERATED
        return ChangeVerdict.IMPROVEMENT if gain > 0 else ChangeVerdict.REGRESSION


@dataclass(frozen=True, kw_only=True)
class LedgerChange:
    """One metric of one entry that has changed, or one of its texts."""

    model: str
    entry: str
    metric: str
    """The metric, or the field with the text: `defects`, `caveat`."""
    verdict: ChangeVerdict
    before: float | str | None
    """None if it was not measured."""
    now: float | str | None
    """None if it is no longer measured."""
    interval_before: tuple[float, float] | None = None
    interval_now: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class LedgerDifference:
    """How one state of the ledger differs from another."""

    changes: Sequence[LedgerChange]
    new: Sequence[str]
    """New entries, with their models."""
    missing: Sequence[str]
    """Removed entries, with their models."""
    changed_inputs: Mapping[str, Sequence[str]]
    """Changed inputs by entry: dataset, weights, and packages with both versions."""

    def of(self, verdict: ChangeVerdict) -> list[LedgerChange]:
        """The changes with a verdict."""
        return [change for change in self.changes if change.verdict is verdict]


def read_tolerances(path: Path) -> dict[str, Tolerance]:
    """Tolerances by metric name or glob, in the file's order; the first match applies.

    Raises:
        LowerdeckError: the file is missing or cannot be read, or a tolerance is invalid.
    """
    import yaml

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LowerdeckError(f"{path}, which says how metrics are judged, cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise LowerdeckError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise LowerdeckError(f"{path} must be a mapping of metrics to their tolerances")
    tolerances: dict[str, Tolerance] = {}
    problems: list[Problem] = []
    for name, value in values.items():
        tolerances[str(name)], found = validate(Tolerance, value, f"{path}: {name}")
        problems += found
    raise_problems(problems)
    return tolerances


def difference(before: Ledger, now: Ledger, tolerances: Mapping[str, Tolerance]) -> LedgerDifference:
    """How `now` differs from `before`."""
    changes: list[LedgerChange] = []
    new, missing, changed_inputs = [], [], {}
    for model in sorted({*before, *now}):
        old_entries, new_entries = before.get(model, {}), now.get(model, {})
        for name in sorted({*old_entries, *new_entries}):
            label = f"{model}: {name}"
            if name not in old_entries:
                new.append(label)
            elif name not in new_entries:
                missing.append(label)
            else:
                changes += _changes(model, old_entries[name], new_entries[name], tolerances)
                changes += _changed_texts(model, old_entries[name], new_entries[name])
                if inputs := list(_changed_inputs(old_entries[name], new_entries[name])):
                    changed_inputs[label] = inputs
    return LedgerDifference(changes=changes, new=new, missing=missing, changed_inputs=changed_inputs)


def _changes(model: str, old: Entry, new: Entry, tolerances: Mapping[str, Tolerance]) -> Iterator[LedgerChange]:
    for metric in dict.fromkeys((*old.metrics, *new.metrics)):
        before, now = old.metrics.get(metric), new.metrics.get(metric)
        if now == before:
            continue
        tolerance = next((tolerances[pattern] for pattern in tolerances if fnmatch.fnmatchcase(metric, pattern)), None)
        if tolerance is None or before is None:
            verdict = ChangeVerdict.CHANGED
        elif now is None:  # a metric that is no longer measured may have got worse unnoticed
            verdict = ChangeVerdict.REGRESSION
        else:
            verdict = tolerance.verdict(before, now)
        yield LedgerChange(
            model=model,
            entry=new.name,
            metric=metric,
            verdict=verdict,
            before=before,
            now=now,
            interval_before=old.intervals.get(metric),
            interval_now=new.intervals.get(metric),
        )


def _changed_texts(model: str, old: Entry, new: Entry) -> Iterator[LedgerChange]:
    """Defects, of which a new kind is a regression, the caveat, and why accuracies are still not measured."""
    texts = {name: (old.not_measured.get(name), new.not_measured.get(name)) for name in sorted(new.not_measured)}
    texts = {name: pair for name, pair in texts.items() if name not in old.metrics}
    texts |= {"caveat": (old.caveat, new.caveat), "defects": ("; ".join(old.defects), "; ".join(new.defects))}
    for name, (before, now) in texts.items():
        if before == now:
            continue
        verdict = ChangeVerdict.CHANGED
        if name == "defects":
            verdict = _verdict_on_defects(old.defects, new.defects)
        yield LedgerChange(
            model=model, entry=new.name, metric=name, verdict=verdict, before=before or "none", now=now or "none"
        )


def _verdict_on_defects(old: Sequence[str], new: Sequence[str]) -> ChangeVerdict:
    before, now = ({defect.partition(":")[0] for defect in defects} for defects in (old, new))
    if now - before:
        return ChangeVerdict.REGRESSION
    return ChangeVerdict.IMPROVEMENT if before - now else ChangeVerdict.CHANGED


def _changed_inputs(old: Entry, new: Entry) -> Iterator[str]:
    for name in INPUT_HASHES:
        if old.hashes.get(name) != new.hashes.get(name):
            yield f"other {name}"
    for name in sorted({*old.versions, *new.versions}):
        before, now = old.versions.get(name, "none"), new.versions.get(name, "none")
        if before != now:
            yield f"{name} {before} -> {now}"
