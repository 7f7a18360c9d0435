"""Conclusions from a comparison, as sentences: which build to ship on each target, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lowerdeck.comparison import formatting
from lowerdeck.comparison.builds import RAM_UNKNOWN, ComparedBuild
from lowerdeck.comparison.columns import Column
from lowerdeck.comparison.comparison import Comparison
from lowerdeck.comparison.pareto import Standing
from lowerdeck.comparison.recommendations import Advantage, Recommendation, Step


def sentences(comparison: Comparison) -> Iterator[str]:
    """What was compared: how many builds, how many programs, and how many of them may be chosen."""
    merged = sum(len(build.identical) for build in comparison.builds)
    programs = {build.program_sha256 or build.label for build in comparison.builds}
    yield f"{_count(len(comparison.builds) + merged, 'build')}, {_count(len(programs), 'different program')}."
    if merged:
        yield "Configurations that give one target the same bytes share a row."
    found = list(comparison.standings.values())
    names = ", ".join(dict.fromkeys(_title(comparison, objective.metric) for objective in comparison.objectives))
    yield f"{len(found)} Pareto-optimal on their target, in {names}."
    if within_noise := found.count(Standing.WITHIN_NOISE):
        yield f"{within_noise} of these {'is' if within_noise == 1 else 'are'} so by a difference within noise alone."
    if ineligible := sum(not build.is_eligible for build in comparison.builds):
        miss = "misses its gates, has a defect" if ineligible == 1 else "miss their gates, have a defect"
        yield f"{ineligible} {miss} or did not finish, and may not be chosen."


def conclusion(comparison: Comparison, recommendation: Recommendation) -> dict[str, Any]:
    """A recommendation in words, the same for the terminal, the page, JSON and Markdown.

    Returns:
        `target`; `build`, `configuration` and `command`, empty where no build may ship; `why`, `beats`, `loses` and
        `caveats` as sentences.
    """
    it, build = recommendation, recommendation.build
    target = it.target or "unknown target"
    named = {"target": f"{target}, samples {it.samples[:8]}" if it.samples else target}
    if build is None:
        reasons = dict.fromkeys(other.reason or str(other.state) for other in it.builds)
        why = f"None of {_count(len(it.builds), 'build')} may ship: {'; '.join(list(reasons)[:3])}."
        return named | {"build": "", "configuration": "", "why": [why], "beats": "", "loses": [], "caveats": [],
                        "command": ""}  # fmt: skip
    return named | {
        "build": build.label,
        "configuration": configuration(comparison, build, it.builds),
        "why": [sentence for step in it.steps if (sentence := _why(step, build))],
        "beats": _beats(it),
        "loses": [_loses(loss) for loss in it.losses],
        "caveats": _caveats(it),
        "command": command(build),
    }


def command(build: ComparedBuild) -> str:
    """The command that makes a build the one of params.yaml."""
    if build.run_id is not None:
        return f"lowerdeck promote {build.label}"
    if build.label == "workspace":
        return "dvc repro"
    return f"git checkout {build.label} -- params.yaml conf"


def configuration(comparison: Comparison, build: ComparedBuild, others: Sequence[ComparedBuild]) -> str:
    """The values in which a build differs from `others`, those of its target; its name if they differ in none."""
    mine = comparison.configurations[build.label][0]
    every = [one for other in others for one in comparison.configurations[other.label]]
    chosen = [f"{key}={value}" for key, value in mine.items() if any(one[key] != value for one in every)]
    return " ".join(chosen) or build.name


def _why(step: Step, build: ComparedBuild) -> str:
    """What a metric of the objective says for the recommended build; empty if it says nothing."""
    if step.column is None:
        name = step.objective.metric.replace("_", " ")
        return f"{name[0].upper()}{name[1:]} decided nothing: {step.why_not}." if step.why_not else ""
    column, alike = step.column, len(step.kept)
    title, value = formatting.title(column, with_source=False), _amount(column, build)
    total = alike + step.num_left_out
    if total == 1:
        return f"{_capital(title)} {value}."
    if alike == 1:
        return f"{_capital(title)} {value}: the best of {total}."
    every = "both" if total == 2 else f"all {total}"
    if alike == total and len({column.value(other) for other in step.kept}) == 1:
        return f"{_capital(title)} {value}: the same in {every}."
    some = every if alike == total else f"{alike} of {total}"
    if column.is_estimated_time:
        return f"{_capital(title)} {value}: {some} are not beaten (it leaves out what the CPU computes)."
    return f"{_capital(title)} {value}: indistinguishable from the best, as in {some}."


def _beats(it: Recommendation) -> str:
    if it.runner_up is None:
        return "There is no other build to choose."
    if it.advantage is None:
        return f"Runner-up {it.runner_up.label} is as good in everything that decides."
    return f"Runner-up {it.runner_up.label} {_difference(it.advantage)}."


def _loses(loss: Advantage) -> str:
    noise = "" if loss.is_beyond_noise else ", within noise"
    title, amount = formatting.title(loss.column, with_source=False), _amount(loss.column, loss.of)
    return f"{title}: {loss.of.label} has {amount}{noise}"


def _difference(advantage: Advantage) -> str:
    """What the beaten build has, e.g. `has 12,288 bytes more RAM (+30.0 %)`."""
    column = advantage.column
    value, other = column.value(advantage.of), column.value(advantage.over)
    assert value is not None
    assert other is not None
    amount = f"{formatting.number(column, abs(other - value))} {formatting.unit(column)}".strip()
    relative = "" if column.is_fraction or not value else f" ({100 * (other - value) / abs(value):+.1f} %)"
    if column.metric == "program_bytes":
        return f"is {amount} {'larger' if other > value else 'smaller'}{relative}"
    if column.metric.endswith("_ms"):
        return f"is {amount} {'slower' if other > value else 'faster'}{relative}"
    more = "more" if other > value else "less"
    return f"has {amount} {more} {formatting.title(column, with_source=False)}{relative}"


def _caveats(it: Recommendation) -> list[str]:
    assert it.build is not None
    unknown, caveat = it.build.texts.get(RAM_UNKNOWN, ""), it.build.texts.get("converter.caveat", "")
    measured = any(step.column is not None and step.column.interval(it.build) for step in it.steps)
    return [
        *([f"{_capital(caveat)}."] if caveat else []),
        *([f"Its RAM is what is known; on top comes {unknown}."] if unknown else []),
        *([] if measured else ["No accuracy was measured: the rest decided."]),
    ]


def _amount(column: Column, build: ComparedBuild) -> str:
    text = f"{formatting.number(column, column.value(build))} {formatting.unit(column)}".strip()
    if build.is_lower_bound(column.metric):
        text = f"at least {text}"
    ends = formatting.interval(column, column.interval(build))
    return f"{text} ({ends})" if ends else text


def _title(comparison: Comparison, metric: str) -> str:
    column = next(column for column in comparison.columns if column.metric == metric)
    return formatting.title(column, with_source=False)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def all_conclusions(comparison: Comparison) -> Sequence[Mapping[str, Any]]:
    """The conclusions of every target."""
    return [conclusion(comparison, each) for each in comparison.recommendations]
