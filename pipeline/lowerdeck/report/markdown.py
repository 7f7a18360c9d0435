"""The verdict and the metrics of a build as Markdown, for a comment on a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from lowerdeck.evaluation.gates import exact
from lowerdeck.formats.markdown import plain_text
from lowerdeck.report import summary
from lowerdeck.report.build import Build
from lowerdeck.report.overview import verdict


def as_markdown(build: Build) -> str:
    """Whether the build ships and why not, its gates, and the table of the terminal."""
    return "\n".join(_lines(build)) + "\n"


def _lines(build: Build) -> Iterator[str]:
    found = verdict(build)
    name = f"{build.config.model.name} on {build.config.target.name}"
    yield f"### {plain_text(name)}: {found.text[0].lower()}{found.text[1:]}"
    yield ""
    yield from (f"- {plain_text(reason)}" for reason in (*found.reasons, *found.notes))
    for gate in found.gates:
        value = "not measured" if gate.value is None else exact(gate.value, gate.bound)
        margin = "" if gate.margin is None else f", margin {100 * gate.margin:+.1f} %"
        judged = "passed" if gate.passed else "**failed**"
        yield f"- {judged}: `{gate.name}` {exact(gate.bound, gate.value)}, measured {value}{margin}"
    yield "\n| metric | value |\n| --- | --- |"
    for what, value in summary.rows(build.config, build.metrics, build.manifest):
        yield f"| {plain_text(what)} | {plain_text(value)} |"
