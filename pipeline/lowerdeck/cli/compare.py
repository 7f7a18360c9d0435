"""`lowerdeck compare`: builds side by side, in the terminal, as JSON and CSV, and on a page."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowerdeck.cli.commands import HELP
from lowerdeck.contracts.errors import LowerdeckError

if TYPE_CHECKING:
    from lowerdeck.comparison.builds import ComparedBuild
    from lowerdeck.comparison.comparison import Comparison
    from lowerdeck.config.schema import TrackingConfig
    from lowerdeck.tracking.comparisons import ComparisonRun
    from lowerdeck.tracking.recorded_run import RecordedRun

STANDARD_OUTPUT = "-"
_GIT = "git:"
_SHORT_HEXADECIMAL = re.compile(r"[0-9a-f]{1,6}")
"""A prefix this short selects a run, not a commit: git never abbreviates to fewer than seven characters."""


def add(commands: Any) -> None:
    """Add the command to the parser of `lowerdeck`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "compare",
        help=HELP["compare"],
        description="Shows builds side by side. Without a SELECTOR: the points of the latest sweep, or all "
        "recorded builds if there is none. docs/compare.md explains tables and page.",
    )
    parser.add_argument(
        "selectors",
        nargs="*",
        metavar="SELECTOR",
        help="a sweep or run (id, its beginning, or name), an MLflow filter, a git revision (or git:REVISION), or "
        "`workspace` for the build in build/",
    )
    parser.add_argument(
        "--sort", metavar="METRIC[:desc]", help="order of rows (default: by target, the recommended build first)"
    )
    parser.add_argument(
        "--objectives",
        metavar="METRIC,...",
        help="what decides, the most important first: METRIC[:max|:min[:TOLERANCE]], e.g. accuracy:max:0.005,time,size "
        "(default: compare.objective of the configuration)",
    )
    parser.add_argument("--metrics", metavar="METRIC,...", help="metrics in the table, instead of the default ones")
    parser.add_argument("--top", type=_count, default=40, metavar="N", help="rows; 0 for all (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write everything as JSON; - prints it instead of the table")
    parser.add_argument("--csv", metavar="FILE", help="write one row per build as CSV; - prints it instead")
    parser.add_argument("--md", metavar="FILE", help="write recommendation and table as Markdown; - prints it instead")
    parser.add_argument("--output", type=Path, metavar="FILE", help="file for the page (default: build/compare.html)")
    parser.add_argument("--no-log", action="store_true", help="do not log the comparison to MLflow")
    parser.add_argument("--wait", action="store_true", help="end when MLflow has the comparison, some seconds later")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Compare, print, write the page, and log both to MLflow."""
    asked = {"compare.json": options.json, "compare.csv": options.csv, "compare.md": options.md}
    printed = [name for name, wanted in asked.items() if wanted == STANDARD_OUTPUT]
    if len(printed) > 1:
        raise LowerdeckError("--json -, --csv - and --md - cannot be printed together; give all but one a file")
    from lowerdeck.artifacts import paths
    from lowerdeck.comparison import exports
    from lowerdeck.pages.comparison import page
    from lowerdeck.tracking import recorded_build

    tracking = recorded_build.tracking_config()
    title, comparison = compared(tracking, options.selectors, options.objectives, options.sort)
    output = options.output or paths.COMPARISON
    texts = {
        "compare.html": page.render(comparison, title, output.parent),
        "compare.json": exports.as_json(comparison),
        "compare.csv": exports.as_csv(comparison),
        "compare.md": exports.as_markdown(comparison, title),
    }
    _write(output, texts["compare.html"])
    for name, wanted in asked.items():
        if wanted == STANDARD_OUTPUT:
            sys.stdout.write(texts[name])
        elif wanted:
            _write(Path(wanted), texts[name])
    if not printed:
        _print(options, comparison, output)
    sys.stdout.flush()
    if tracking.enabled and not options.no_log:
        files = texts | {"compare.html": page.render(comparison, title, None)}
        _log(tracking, title, comparison, files, wait=options.wait)


def compared(
    tracking: TrackingConfig, selectors: Sequence[str], objectives: str | None = None, sort: str | None = None
) -> tuple[str, Comparison]:
    """A title for the builds that `selectors` name, and their comparison; arguments as on the command line.

    Raises:
        LowerdeckError: a selector names nothing, or an argument is invalid.
    """
    from lowerdeck.comparison.comparison import compare
    from lowerdeck.tracking import recorded_build

    title, builds = _builds(tracking, selectors)
    by_target: dict[str, list[ComparedBuild]] = {}
    for build in builds:
        by_target.setdefault(build.target, []).append(build)
    paired = {key: value for group in by_target.values() for key, value in _paired(tracking, group).items()}
    default = recorded_build.compare_config().objective
    return title, compare(builds, objectives=objectives, sort=sort, paired=paired, default_objective=default)


def _builds(tracking: TrackingConfig, selectors: Sequence[str]) -> tuple[str, list[ComparedBuild]]:
    """A title, and the builds that are selected, each once, labels all different."""
    from lowerdeck.comparison import sources
    from lowerdeck.tracking import runs, ui

    if not selectors:
        sweep = runs.latest_sweep(tracking)
        found = runs.find_runs(tracking, selector=sweep)
        if not found:
            raise LowerdeckError(f"no build was recorded yet: {ui.RECORDING_ADVICE}")
        title = f"Sweep {sweep}" if sweep else f"Experiment {tracking.experiment}"
        return title, _with_lost_points(tracking, found, [sweep] if sweep else [])
    recorded: dict[str, RecordedRun] = {}
    others: dict[str, ComparedBuild] = {}
    sweeps: list[str] = []
    for selector in selectors:
        if selector == sources.WORKSPACE:
            others[selector] = sources.from_workspace()
        elif (revision := _revision(selector)) is not None:
            others[revision] = sources.from_revision(revision)
        else:
            try:
                found = runs.find_runs(tracking, selector=selector)
            except LowerdeckError:
                unrecorded = _unrecorded_sweeps(selector)
                if not unrecorded:
                    raise
                sweeps += unrecorded
                continue
            recorded |= {run.run_id: run for run in found}
            sweeps += runs.sweeps_named(selector, found)
    builds = _with_lost_points(tracking, list(recorded.values()), sweeps)
    return ", ".join(selectors), [*others.values(), *builds]


def _with_lost_points(
    tracking: TrackingConfig, found: Sequence[RecordedRun], sweeps: Sequence[str]
) -> list[ComparedBuild]:
    """The builds of `found`, and points of this project's `sweeps` that failed or were skipped and so have no run."""
    from lowerdeck.comparison import sources
    from lowerdeck.sweeps.folder import Folder
    from lowerdeck.sweeps.snapshot import SWEEPS
    from lowerdeck.tracking import runs, ui

    recorded = sources.points_of(found)
    lost = [
        sources.from_lost_point(sweep, record.point, record.overrides, record.status, record.reason)
        for sweep in dict.fromkeys(sweeps)
        for record in Folder(Path(SWEEPS, sweep)).records()
        if record.status != "built" and (sweep, str(record.point)) not in recorded
    ]
    detailed = runs.with_details(tracking, found) if found else []
    return [*(sources.from_runs(detailed, ui.locate(tracking).run_pages) if found else []), *lost]


def _unrecorded_sweeps(selector: str) -> list[str]:
    """Ids of this project's sweeps that begin with `selector` and have no point in MLflow.

    Sweeps with a measured point are left out: its run was recorded, so that it is missing for another reason.
    """
    from lowerdeck.sweeps.folder import Folder
    from lowerdeck.sweeps.snapshot import SWEEPS

    if not re.fullmatch(r"[0-9a-f]{4,}", selector):
        return []
    found = [path.parent for path in SWEEPS.glob(f"{selector}*/points.jsonl")]
    return [path.name for path in found if not any(record.metrics for record in Folder(path).records())]


def _revision(selector: str) -> str | None:
    """The git revision that `selector` names; None if it names none.

    Raises:
        LowerdeckError: the selector begins with `git:` and git does not know the revision.
    """
    from lowerdeck.comparison import sources

    revision = selector.removeprefix(_GIT)
    if selector == revision and _SHORT_HEXADECIMAL.fullmatch(selector):
        return None
    if sources.is_revision(revision):
        return revision
    if selector != revision:
        raise LowerdeckError(f"git knows no commit {revision!r}; `git log --oneline` lists the commits")
    return None


def _paired(tracking: TrackingConfig, builds: Sequence[ComparedBuild]) -> dict[str, bool]:
    """Paired tests of the builds whose intervals overlap that of the best, if their confusion pairs are available."""
    from lowerdeck.artifacts import paths
    from lowerdeck.comparison import paired, sources
    from lowerdeck.tracking.runs import read_artifacts

    answers: dict[str, bool] = {}
    for column, near in paired.candidates(builds):
        if len(near) < 2:
            continue
        by_run = {build.run_id: build.label for build in near if build.run_id is not None}
        read = read_artifacts(tracking, list(by_run), paths.CONFUSION.name)
        pairs = {by_run[run]: data for run, data in read.items()}
        pairs |= {build.label: data for build in near if (data := sources.confusion(build)) is not None}
        hits = {label: paired.read_hits(data.decode()) for label, data in pairs.items()}
        answers |= paired.paired_tests(column, hits, near)
    return answers | _drawn_tests(tracking, builds)


def _drawn_tests(tracking: TrackingConfig, builds: Sequence[ComparedBuild]) -> dict[str, bool]:
    """Paired tests of metrics whose intervals are resampled, where the builds have their draws."""
    from lowerdeck.artifacts import paths
    from lowerdeck.artifacts.evaluation_results import read_draws
    from lowerdeck.comparison import paired, sources
    from lowerdeck.tracking.runs import read_artifacts

    columns = [(column, near) for column, near in paired.drawn_candidates(builds) if len(near) > 1]
    wanted = {build.label: build for _, near in columns for build in near}
    by_run = {build.run_id: label for label, build in wanted.items() if build.run_id is not None}
    content = {by_run[run]: data for run, data in read_artifacts(tracking, list(by_run), paths.DRAWS.name).items()}
    content |= {label: data for label, build in wanted.items() if (data := sources.draws(build)) is not None}
    draws = {label: read_draws(data) for label, data in content.items()}
    return {key: value for column, near in columns for key, value in paired.drawn_tests(column, draws, near).items()}


def _print(options: argparse.Namespace, comparison: Comparison, output: Path) -> None:
    from lowerdeck.comparison import terminal
    from lowerdeck.comparison.pareto import known_metric

    names = [name.strip() for name in (options.metrics or "").split(",") if name.strip()]
    metrics = [known_metric(name, comparison.columns) for name in names]
    console = terminal.console()
    terminal.print_comparison(comparison, console, top=options.top or None, metrics=metrics)
    terminal.print_effects(comparison, console)
    console.print(f"\nthe page: {output}", soft_wrap=True)


def _write(path: Path, text: str) -> None:
    from lowerdeck.artifacts.files import write_text

    try:
        write_text(path, text)
    except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
        raise LowerdeckError(f"{path} cannot be written: {error.strerror}") from error


def _log(tracking: TrackingConfig, title: str, comparison: Comparison, files: Mapping[str, str], *, wait: bool) -> None:
    """Log the comparison to MLflow: now, or behind the answer; then what failed is said by the next comparison."""
    from lowerdeck.artifacts import paths
    from lowerdeck.tracking.comparisons import log_comparison, start_logging

    logged: ComparisonRun = {
        "name": f"comparison: {title}",
        "labels": [_identity(build) for build in (*comparison.builds, *comparison.not_comparable)],
        "objectives": ",".join(map(str, comparison.objectives)),
        "files": files,
    }
    log = paths.COMPARISON_LOG
    if log.is_file() and (failure := log.read_text(errors="replace").strip()):
        print(f"lowerdeck compare: the previous comparison was not logged to MLflow: {failure}", file=sys.stderr)
    if wait:
        log.unlink(missing_ok=True)
        log_comparison(tracking, **logged)
    else:
        log.parent.mkdir(parents=True, exist_ok=True)
        start_logging(tracking, log, **logged)


def _identity(build: ComparedBuild) -> str:
    """What identifies a build in the record of its comparison: a revision such as HEAD names another one tomorrow."""
    from lowerdeck.comparison import sources

    return build.run_id or sources.commit(build.label) or build.label


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows; 0 shows all")
    return int(text)
