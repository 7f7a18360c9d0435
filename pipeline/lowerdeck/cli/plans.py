"""Finds delegation plans by name: a file, a git revision or an MLflow run."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.plans import parse_plan
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.plan import DelegationPlan
from lowerdeck.report.build import RunPage

if TYPE_CHECKING:
    from lowerdeck.tracking.recorded_run import RecordedRun


@dataclass(frozen=True, kw_only=True)
class NamedPlan:
    """A plan that a name selected."""

    plan: DelegationPlan
    origin: str
    """What the name selected, for people."""
    run_page: RunPage | None = None
    """The page of the MLflow run that recorded it."""


def named_plan(name: str) -> NamedPlan:
    """The plan that `name` selects.

    Args:
        name: Path of a plan.json, or a git revision, or else an MLflow run by its id, a prefix of it, or its name.

    Raises:
        LowerdeckError: `name` is none of the three, or the plan of that revision or run is not available here.
    """
    path = Path(name)
    if path.is_file():
        return NamedPlan(plan=parse_plan(_text(path.read_bytes(), name), name), origin=name)
    if path.is_dir() or path.suffix == ".json":
        raise LowerdeckError(f"{name} is not a plan file: a build has one at {paths.PLAN}")
    commit = _commit(name)
    if commit is not None:
        description = f"revision {name} ({commit[:10]})"
        return NamedPlan(plan=parse_plan(_of_revision(name), f"the plan of {description}"), origin=description)
    from lowerdeck.tracking.store import BUILD_KEY_TAG

    run = _run(name)
    description = f"run {run.name!r} ({run.run_id[:8]})"
    return NamedPlan(
        plan=parse_plan(_of_run(run.run_id), f"the plan of {description}"),
        origin=description,
        run_page=RunPage(address=run.address, build_key=run.tags.get(BUILD_KEY_TAG, "")),
    )


def _text(content: bytes, where: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise LowerdeckError(f"{where} is not a delegation plan: it is not text") from None


def _commit(name: str) -> str | None:
    """The commit that `name` selects in git; None if it selects none."""
    if name.startswith("-"):
        return None
    command = ["git", "rev-parse", "--quiet", "--verify", "--end-of-options", f"{name}^{{commit}}"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return found.stdout.strip() if found.returncode == 0 else None


def _of_revision(revision: str) -> str:
    """plan.json of a revision: git has its digest in dvc.lock, and DVC's cache has the file.

    Raises:
        LowerdeckError: the revision has no plan, or DVC's cache lacks it.
    """
    import dvc.api
    from dvc.exceptions import DvcException
    from dvc.scm import SCMError

    # Revisions before the check of partitions have the partitioner's plan only.
    errors = []
    here = subprocess.run(["git", "rev-parse", "--show-prefix"], capture_output=True, text=True, check=False)
    for path in (paths.PLAN, paths.PLANNED):
        try:
            text: str = dvc.api.read(f"{here.stdout.strip()}{path.as_posix()}", rev=revision, mode="r")
        except (DvcException, SCMError, OSError) as error:
            errors.append(" ".join(str(error).split()))
        else:
            return text
    raise LowerdeckError(
        f"the plan of revision {revision} is not available here: {errors[0]}\n"
        "git has its digest in dvc.lock, and DVC's cache the file. `dvc fetch` gets it from a remote; otherwise "
        f"check out {revision} in another folder, run `dvc repro convert` there and pass its {paths.PLAN}."
    )


def _run(name: str) -> RecordedRun:
    """The run that `name` selects.

    Raises:
        LowerdeckError: no run or several runs match.
    """
    from lowerdeck.tracking import recorded_build
    from lowerdeck.tracking.runs import find_runs

    asked = f"{name!r} is neither a file nor a git revision"
    try:
        found = find_runs(recorded_build.tracking_config(), selector=name)
    except LowerdeckError as error:
        raise LowerdeckError(f"{asked}; as an MLflow run: {error}") from None
    if len(found) > 1:
        listed = "\n".join(f"  {run.run_id}  {run.name}" for run in found[:10])
        raise LowerdeckError(f"{asked}; {len(found)} MLflow runs match, use the id of one:\n{listed}")
    return found[0]


def _of_run(run_id: str) -> str:
    from lowerdeck.tracking import recorded_build
    from lowerdeck.tracking.runs import read_artifact

    tracking = recorded_build.tracking_config()
    return _text(read_artifact(tracking, run_id, paths.PLAN.name), f"plan.json of run {run_id}")
