"""`lowerdeck promote`: writes a recorded build's configuration into params.yaml and rebuilds its program."""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowerdeck.cli.commands import HELP
from lowerdeck.contracts.errors import LowerdeckError

if TYPE_CHECKING:
    from lowerdeck.config.schema import TrackingConfig
    from lowerdeck.release.promotion.selection import Selected
    from lowerdeck.tracking.recorded_build import RecordedBuild

PARAMS = Path("params.yaml")
CONF = Path("conf")


def add(commands: Any) -> None:
    """Add the command to the parser of `lowerdeck`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "promote",
        help=HELP["promote"],
        description="Write params.yaml so that `dvc repro` builds what a run recorded, build it as far as the .pte, "
        "and compare its SHA-256 with the run's.",
    )
    parser.add_argument("selector", metavar="RUN", help="a recorded build or point of a sweep: its run's id or name")
    parser.add_argument("--dry-run", action="store_true", help="only show what would be written")
    parser.add_argument("--no-build", action="store_true", help="write params.yaml only")
    parser.add_argument(
        "--force",
        action="store_true",
        help="overwrite uncommitted changes, continue although an input of the build has changed or the build has a "
        "defect, and register a program that misses its gates",
    )
    parser.add_argument("--register", metavar="NAME", help="register the program in MLflow's model registry")
    parser.add_argument("--alias", help="alias of the registered version, e.g. candidate")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Write, build, check, register."""
    _check_options(options)
    from lowerdeck.artifacts import paths
    from lowerdeck.tracking import recorded_build
    from lowerdeck.tracking.cleaning import mark_promoted

    tracking = recorded_build.tracking_config()
    build = recorded_build.read(tracking, recorded_build.find_run(tracking, options.selector))
    print(f"promoting {build}: program {build.program_sha256}")
    _print_gates(options, build)
    _print_defects(options, build)
    selected = _selected(build)
    _print_differences(options, build, selected)
    _write(options, selected)
    if options.dry_run:
        return
    if options.no_build:
        print(f"`dvc repro convert` builds it; {paths.PROGRAM} must have SHA-256 {build.program_sha256}")
        return
    _build_and_check(build)
    mark_promoted(tracking, build.run.run_id)
    if options.register:
        _register(options, tracking, build)
    print("`dvc repro` evaluates and records it; then commit params.yaml, dvc.lock and build")


def _check_options(options: argparse.Namespace) -> None:
    if options.alias and not options.register:
        raise LowerdeckError("--alias needs --register NAME: it names the registered version")
    if options.register and (options.dry_run or options.no_build):
        raise LowerdeckError("--register needs the program to be built and checked; leave out --dry-run and --no-build")


def _print_gates(options: argparse.Namespace, build: RecordedBuild) -> None:
    """Report that the run misses its gates; such a program is registered only with --force."""
    if build.run.tags.get("gates") != "failed":
        return
    message = f"{build} misses its gates: {build.run.tags.get('gates.failed', 'its tag gates.failed is missing')}"
    if options.register and not options.force:
        raise LowerdeckError(f"{message}\nNothing was written. --force registers it anyway.")
    print(f"note: {message}; `dvc repro` will end at evaluate")


def _print_defects(options: argparse.Namespace, build: RecordedBuild) -> None:
    """Report why the build must not ship; it is promoted only with --force."""
    from lowerdeck.tracking.content import DEFECTS_TAG

    if not (found := build.run.tags.get(DEFECTS_TAG)):
        return
    message = f"{build} must not ship: it {found}"
    if not options.force and not options.dry_run:
        raise LowerdeckError(f"{message}\nNothing was written. --force promotes it anyway.")
    print(f"note: {message}")


def _selected(build: RecordedBuild) -> Selected:
    """The content of params.yaml."""
    from lowerdeck.config.choices import read_params
    from lowerdeck.contracts.errors import ConfigurationError
    from lowerdeck.release.promotion.selection import selection_of

    try:
        return selection_of(build.config, read_params(PARAMS), CONF)
    except ConfigurationError as error:
        raise LowerdeckError(f"{build} cannot be composed from {PARAMS} and {CONF}/ here:\n{error}") from None


def _print_differences(options: argparse.Namespace, build: RecordedBuild, selected: Selected) -> None:
    """Report differences from the record, and stop at those that can change the program.

    A key that did not exist then has its default, which is the behaviour before the key existed.
    """
    from lowerdeck.release.promotion.check import format_difference, version_differences

    found = [*version_differences(build), *selected.differences]
    changed = [difference for difference in found if not difference.is_new]
    for difference in found:
        if difference.is_new:
            print(f"note: {format_difference(difference)}")
    if not changed:
        return
    listed = "\n".join(f"  {format_difference(difference)}" for difference in changed)
    commit = build.run.tags.get("git.commit", "none")
    where = "" if commit == "none" else f"\nIt was recorded at commit {commit[:12]}."
    message = (
        f"{build} was built from inputs that differ from those here, which {PARAMS} cannot express:\n{listed}{where}"
    )
    if options.force or options.dry_run:
        print(f"note: {message}")
        return
    raise LowerdeckError(f"{message}\nNothing was written. --force continues, and the check then shows the result.")


def _write(options: argparse.Namespace, selected: Selected) -> None:
    """Show the changes to params.yaml, and write them."""
    from lowerdeck.artifacts.files import write_text
    from lowerdeck.config.params import with_values
    from lowerdeck.release.promotion.workspace import check_committed

    before, after = PARAMS.read_bytes().decode(), with_values(PARAMS, selected.selection.params())
    if before == after:
        print(f"{PARAMS} has this content already")
        return
    names = f"{PARAMS} before", f"{PARAMS} {'as it would be' if options.dry_run else 'after'}"
    print("".join(difflib.unified_diff(before.splitlines(True), after.splitlines(True), *names)), end="")
    if not options.dry_run:
        if not options.force:
            check_committed(PARAMS)
        write_text(PARAMS, after)


def _build_and_check(build: RecordedBuild) -> None:
    """Build through convert, and compare the program's SHA-256 with the run's."""
    from lowerdeck.artifacts import paths
    from lowerdeck.artifacts.files import sha256
    from lowerdeck.config.load import read_config
    from lowerdeck.release.promotion import workspace
    from lowerdeck.release.promotion.check import compare_fingerprints, table

    workspace.build()
    here = sha256(paths.PROGRAM)
    if here == build.program_sha256:
        print(f"the same program: {paths.PROGRAM} has the SHA-256 of the run, {here}")
        return
    listed = "\n".join(table(list(compare_fingerprints(build, read_config(paths.CONFIG)))))
    commit = build.run.tags.get("git.commit", "none")
    dirty = " with uncommitted changes" if build.run.tags.get("git.dirty") == "true" else ""
    code = "" if commit == "none" else f"\nThe code was that of commit {commit[:12]}{dirty}."
    raise LowerdeckError(
        f"not the program of the run: {paths.PROGRAM} has SHA-256 {here}, the run's has "
        f"{build.program_sha256}.\nInputs and intermediate results, in build order; the first difference is the "
        f"cause, the others follow from it:\n{listed}{code}\n"
        f"{PARAMS} keeps the new content; `git checkout {PARAMS}` restores the old one."
    )


def _register(options: argparse.Namespace, tracking: TrackingConfig, build: RecordedBuild) -> None:
    from lowerdeck.tracking.address import redact_credentials, tracking_uri
    from lowerdeck.tracking.registry import register

    registered = register(tracking, options.register, build.run.run_id, build.lineage["build_key"], options.alias)
    what = "registered" if registered.new else "was registered before, no second version was created"
    print(f"models:/{options.register}/{registered.version}: {what}")
    place = f"@{options.alias}" if options.alias else f"/{registered.version}"
    uri = redact_credentials(tracking_uri(tracking))
    print(f"with MLFLOW_TRACKING_URI={uri}: mlflow.pyfunc.load_model('models:/{options.register}{place}')")
