"""Reads builds from MLflow runs, git revisions and the workspace."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import sha256
from lowerdeck.comparison.builds import RAM_UNKNOWN, ComparedBuild, State, finite_metrics
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.evaluation.defects import defects
from lowerdeck.evaluation.gates import all_bounds, failed_gates
from lowerdeck.evaluation.metric_names import DESCRIPTIONS, PRIMARY
from lowerdeck.fingerprints.keys import NOT_OF_A_BUILD
from lowerdeck.provenance.lineage import samples_used
from lowerdeck.report import summary
from lowerdeck.report.build import check_is_one_build
from lowerdeck.tracking.content import DEFECTS_TAG, flat_params, git_output
from lowerdeck.tracking.recorded_run import SWEEP_ID_TAG, RecordedRun

WORKSPACE = "workspace"
"""Selects the build in build/, committed or not; the term is DVC's."""
LABEL_CHARACTERS = 8
_OVERRIDES_TAG, _POINT_TAG = "sweep.overrides", "sweep.point"
_PROGRAM = "program_sha256"
_TEXTS = ("delegated_accuracy", "converter.caveat", RAM_UNKNOWN, PRIMARY)
_REVISION_FILES = (paths.METRICS, paths.CONFIG, paths.LINEAGE, paths.DEVICE_METRICS)
_LINKED = {
    "report": paths.REPORT.name,
    "explanation": paths.EXPLANATION.name,
    "plan": paths.PLAN.name,
    "program": paths.PROGRAM.name,
    "configuration": paths.CONFIG.name,
}


def from_runs(runs: Sequence[RecordedRun], run_pages: str | None = None) -> list[ComparedBuild]:
    """Recorded builds; their labels are as long as necessary to differ.

    Args:
        runs: Result of `find_runs`, with details.
        run_pages: Prefix of the addresses of their pages on a server; None links their files.
    """
    ids = [run.run_id for run in runs]
    length = LABEL_CHARACTERS
    while len({run_id[:length] for run_id in ids}) < len(set(ids)):
        length += 1
    return [_from_run(run, run.run_id[:length], _links(run, run_pages)) for run in runs]


def _links(run: RecordedRun, run_pages: str | None) -> dict[str, str]:
    if run_pages is not None:
        return {"run": run_pages + run.run_id}
    return {name: f"{run.artifact_uri}/{file}" for name, file in _LINKED.items()} if run.artifact_uri else {}


def _from_run(run: RecordedRun, label: str, links: Mapping[str, str]) -> ComparedBuild:
    numbers, tags = finite_metrics(run.metrics), run.tags
    overridden = {text.partition("=")[0] for text in json.loads(tags.get(_OVERRIDES_TAG, "[]"))}
    state, reason = _state(run, bool(numbers))
    converter = f"{tags.get('converter', '')} {tags.get('converter_version', '')}".strip()
    return ComparedBuild(
        label=label,
        name=run.name,
        state=state,
        reason=reason,
        params=run.params,
        overridden=frozenset(overridden),
        metrics=numbers,
        texts={key: text for key, text in tags.items() if key in _TEXTS or key.startswith(DESCRIPTIONS)},
        compiler=_compiler(tags.get("flavor", ""), converter),
        samples=tags.get("dataset.evaluation.sha256", ""),
        device=_device(tags),
        program_sha256=tags.get(_PROGRAM, ""),
        run_id=run.run_id,
        links=links,
    )


def points_of(runs: Sequence[RecordedRun]) -> set[tuple[str, str]]:
    """(sweep id, point number) of all runs that are points of a sweep."""
    return {(run.tags[SWEEP_ID_TAG], run.tags.get(_POINT_TAG, "")) for run in runs if SWEEP_ID_TAG in run.tags}


def from_lost_point(sweep_id: str, point: int, overrides: Sequence[str], status: str, reason: str) -> ComparedBuild:
    """A point of a sweep without a build; `status` is `failed` or `skipped`."""
    label = f"{sweep_id[:LABEL_CHARACTERS]} point {point}"
    return ComparedBuild(label=label, name=" ".join(overrides), state=State(status), reason=" ".join(reason.split()))


def _state(run: RecordedRun, has_metrics: bool) -> tuple[State, str]:
    if run.lost:
        return State.FAILED, run.lost
    if not has_metrics:
        return (State.RUNNING if run.status in ("RUNNING", "SCHEDULED") else State.FAILED), f"MLflow says {run.status}"
    found = run.tags.get(DEFECTS_TAG, "")
    if run.tags.get("gates") == "failed":
        return State.GATED, "; ".join(filter(None, (run.tags.get("gates.failed", ""), found)))
    if found:
        return State.DEFECTIVE, found
    return (State.BUILT, "") if run.status == "FINISHED" else (State.RUNNING, f"MLflow says {run.status}")


def _measured_state(section: Mapping[str, Any], measured: Mapping[str, Any]) -> tuple[State, str]:
    """State of a finished build, and its reason, by its section `gates` and its metrics."""
    failed, found = list(failed_gates(all_bounds(section), measured).values()), defects(measured)
    state = State.GATED if failed else State.DEFECTIVE if found else State.BUILT
    return state, "; ".join((*failed, *found))


def _compiler(flavor: str, converter: str) -> str:
    return f"{flavor} ({converter})" if converter and converter != flavor else flavor


def _device(texts: Mapping[str, Any]) -> str:
    """The device of a build by its texts, with the start of its runtime's SHA-256: no other runtime is comparable."""
    if "device" not in texts:
        return ""
    digest = str(texts.get("device_runtime_sha256", "unknown"))
    return f"{texts['device']} ({digest if digest == 'unknown' else digest[:12]})"


def is_revision(text: str) -> bool:
    """Whether git knows `text` as a commit."""
    return commit(text) is not None


def commit(revision: str) -> str | None:
    """The commit that git knows as `revision`; None if it is none."""
    if not revision or revision.startswith("-"):
        return None
    found = git_output("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    return None if found is None else found.strip()


def from_revision(revision: str) -> ComparedBuild:
    """The build in a commit, from its metrics.json, config.yaml and lineage.json.

    Raises:
        LowerdeckError: the commit contains no build.
    """
    found = {path: git_output("show", f"{revision}:./{path.as_posix()}") for path in _REVISION_FILES}
    missing = [path.as_posix() for path in (paths.METRICS, paths.CONFIG) if found[path] is None]
    if missing:
        raise LowerdeckError(
            f"the git revision {revision!r} contains no build: {' and '.join(missing)} is not committed there. `dvc "
            "repro` builds, and `git add build dvc.lock` with a commit records the build's metrics"
        )
    return _from_files(revision, {path: text for path, text in found.items() if text is not None})


def confusion(build: ComparedBuild) -> bytes | None:
    """The confusion pairs of a build in git or in the workspace; None if there are none."""
    if build.run_id is not None:
        return None
    if build.label == WORKSPACE:
        return paths.CONFUSION.read_bytes() if paths.CONFUSION.is_file() else None
    text = git_output("show", f"{build.label}:./{paths.CONFUSION.as_posix()}")
    return None if text is None else text.encode()


def draws(build: ComparedBuild) -> bytes | None:
    """The draws of the metrics of the build in the workspace; None for builds elsewhere, which do not have them."""
    return paths.DRAWS.read_bytes() if build.label == WORKSPACE and paths.DRAWS.is_file() else None


def from_workspace() -> ComparedBuild:
    """The build in build/.

    Raises:
        LowerdeckError: build/ is incomplete.
    """
    for path in (paths.METRICS, paths.CONFIG):
        if not path.is_file():
            raise LowerdeckError(f"{path} is missing: `dvc repro` builds")
    files = {path: path.read_text(encoding="utf-8") for path in _REVISION_FILES if path.is_file()}
    if paths.LINEAGE in files and not _is_of_program(files[paths.LINEAGE]):
        del files[paths.LINEAGE]  # it belongs to an earlier build: this one is not recorded yet
    check_is_one_build()
    build = _from_files(WORKSPACE, files)
    # The lineage may be of the same program on other samples.
    used = samples_used(paths.EVALUATION_SAMPLES)["sha256"] if paths.EVALUATION_SAMPLES.is_file() else build.samples
    return replace(build, samples=used)


def _is_of_program(lineage: str) -> bool:
    """Whether the lineage ends with the program in build/."""
    try:
        programs = [link["sha256"] for link in json.loads(lineage)["links"] if link["name"] == "program"]
    except (ValueError, KeyError, TypeError):
        return True  # the caller reads it again, and says that it is damaged
    return paths.PROGRAM.is_file() and programs == [sha256(paths.PROGRAM)]


def _from_files(label: str, files: Mapping[Path, str]) -> ComparedBuild:
    import yaml

    try:
        measured = json.loads(files[paths.METRICS]) | json.loads(files.get(paths.DEVICE_METRICS, "{}"))
        config = yaml.safe_load(files[paths.CONFIG])
        lineage = json.loads(files.get(paths.LINEAGE, "{}"))
        converter, samples = _converter(lineage), _samples(lineage, config, measured)
        program_sha256 = str(measured.get(_PROGRAM, "")) or _program(lineage)
        name = " ".join(config[section]["name"] for section in ("model", "target", "quantization", "flavor"))
    except (ValueError, yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
        way_out = "; delete it, and `dvc repro` makes it again" if label == WORKSPACE else ""
        raise LowerdeckError(
            f"{label}: metrics.json, config.yaml or lineage.json is damaged: {error!r}{way_out}"
        ) from error
    for section in NOT_OF_A_BUILD:
        config.pop(section, None)
    state, reason = _measured_state(config["gates"], measured)
    texts = {key: str(value) for key, value in measured.items() if not summary.is_number(value)}
    texts.pop(_PROGRAM, None)
    return ComparedBuild(
        label=label,
        name=name,
        state=state,
        reason=reason,
        params=flat_params(config)[0],
        metrics=finite_metrics(measured),
        texts=texts | ({"converter.caveat": converter["caveat"]} if converter["caveat"] else {}),
        compiler=_compiler(config["flavor"]["name"], f"{converter['name']} {converter['version']}".strip()),
        samples=samples,
        device=_device(measured),
        program_sha256=program_sha256,
    )


def _program(lineage: Mapping[str, Any]) -> str:
    """SHA-256 of the program, of builds whose metrics do not have it."""
    return next((str(link["sha256"]) for link in lineage.get("links", ()) if link["name"] == "program"), "")


def _converter(lineage: Mapping[str, Any]) -> Mapping[str, str]:
    """Name, version and caveat of the converter; empty without a lineage."""
    found = (link["converter"] for link in lineage.get("links", ()) if "converter" in link)
    return next(found, {"name": "", "version": "", "caveat": ""})


def _samples(lineage: Mapping[str, Any], config: Mapping[str, Any], measured: Mapping[str, Any]) -> str:
    """Digest of the evaluation samples; without a lineage, the dataset's name and their number."""
    for link in lineage.get("links", ()):
        if link["name"] == "dataset":
            return str(link["evaluation"]["sha256"])
    return f"{config['dataset']['name']}, {measured.get('num_samples')} samples"
