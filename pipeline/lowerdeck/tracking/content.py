"""The content of a build's run: parameters, metrics, tags, details, description and datasets, as plain values.

At most a dozen tags are for readers and for filters of MLflow; all other texts are details, one file of the run.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import read_json
from lowerdeck.artifacts.measurements import read_all_metrics
from lowerdeck.artifacts.quantization_report import read_quantization_loss
from lowerdeck.config.schema import Config
from lowerdeck.evaluation import gates
from lowerdeck.evaluation.defects import defects
from lowerdeck.fingerprints.keys import NOT_OF_A_BUILD
from lowerdeck.report import summary
from lowerdeck.tracking.address import database_file, redact_credentials, tracking_uri

UPSTREAM_KEY_TAG = "lowerdeck.upstream_key"
"""The tag shared by builds that differ only in their converter flavor."""
DEFECTS_TAG = "defects"
"""The tag that says why a build must not ship; runs without defects lack it."""
DETAILS = "details.json"
"""File of a run: the texts that are no tags. Runs of versions before 0.2.0 have tags instead."""
DEVICE_FILES = "device"
"""Folder of a run with the files of the measurement on a device."""
_GATED = ("gates", "gates.failed")
_TAGS = (
    *("model", "dataset", "target", "quantization", "flavor", "converter", "device"),
    *(*_GATED, DEFECTS_TAG, "git.commit", "program_sha256"),
)
"""The texts that are tags, where a build has them."""
MAX_PARAM_CHARACTERS = 6000
MAX_TAG_CHARACTERS = 8000
MAX_KEY_CHARACTERS = 250
MAX_DIGEST_CHARACTERS = 36
_NAMING = ("model", "target", "quantization", "flavor")
"""Groups whose options name a run."""
_SPLITS = ("calibration", "evaluation")


@dataclass(frozen=True, kw_only=True)
class Content:
    """A run without its files, with keys and values that MLflow accepts."""

    run_name: str
    primary_metric: str
    """First metric of the task, e.g. `accuracy`."""
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    details: Mapping[str, str]
    """All other texts: versions, digests, the device's runtime, what was not measured and why."""
    datasets: Mapping[str, Mapping[str, str]]
    """Context (`calibration`, `evaluation`) -> fields of MLflow's Dataset."""


def content(config: Config, lineage: Mapping[str, Any], sweep_tags: Mapping[str, str] | None = None) -> Content:
    """The content of the run of the build in build/.

    Args:
        config: Resolved configuration.
        lineage: Result of `lineage.trace`.
        sweep_tags: Tags of a point of a sweep; None for a build.
    """
    measured, manifest = read_all_metrics(), read_json(paths.MANIFEST)
    configuration = dataclasses.asdict(config)
    for section in NOT_OF_A_BUILD:
        del configuration[section]
    params, cut = flat_params(configuration)
    results = dict(flat(measured))
    texts = {key: str(value) for key, value in results.items() if not summary.is_number(value)}
    texts |= _texts(config, measured, manifest)
    texts |= {f"dataset.{split}.sha256": lineage["links"][0][split]["sha256"] for split in _SPLITS}
    if cut:
        texts["params.cut"] = f"shortened to {MAX_PARAM_CHARACTERS} characters, config.yaml is whole: {', '.join(cut)}"
    tags = {key: texts.pop(key)[:MAX_TAG_CHARACTERS] for key in _TAGS if key in texts}
    tags |= {UPSTREAM_KEY_TAG: lineage["upstream_key"]}
    tags |= _of_mlflow(_note(config, measured, manifest), tags["git.commit"])
    return Content(
        run_name=run_name(params, sweep_tags or {}),
        primary_metric=summary.primary_metric(measured),
        params=params,
        metrics={_key(key): float(value) for key, value in results.items() if summary.is_number(value)},
        tags=tags,
        details=texts,
        datasets=_datasets(config, lineage),
    )


def run_name(params: Mapping[str, str], tags: Mapping[str, str]) -> str:
    """The name of a build's run: its choices, and of a point of a sweep what else its overrides say.

    Args:
        params: Parameters of the run.
        tags: Those of a sweep, if the build is a point of one.
    """
    overrides = (text.partition("=") for text in json.loads(tags.get("sweep.overrides", "[]")))
    own = {key.lstrip("+"): value for key, _, value in overrides if key.lstrip("+") not in _NAMING}
    chosen = [params.get(f"{group}.name", "") for group in _NAMING]
    return " ".join([*chosen, *(f"{key.rpartition('.')[2]}={value}" for key, value in own.items())])


def is_given_name(name: str, params: Mapping[str, str], tags: Mapping[str, str]) -> bool:
    """Whether a run has a name that this project gives, rather than one that somebody chose in MLflow."""
    # Points of sweeps had the name of a build before version 0.2.0.
    return name in (run_name(params, tags), run_name(params, {}))


def flat_params(configuration: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """`configuration` as the flat parameters of a run, and the keys of values that are too long for MLflow."""
    params, cut = {}, []
    for dotted, value in flat(configuration):
        key, text = _key(dotted), value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if len(text) > MAX_PARAM_CHARACTERS:
            cut.append(key)
        params[key] = text[:MAX_PARAM_CHARACTERS]
    return params, cut


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) pairs, where lists and empty mappings are values."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _key(dotted: str) -> str:
    """`dotted` without characters that MLflow refuses in a key; keys stay distinct."""
    key = re.sub(r"[^A-Za-z0-9_. -]", "_", dotted)
    if key == dotted and len(key) <= MAX_KEY_CHARACTERS:
        return key
    suffix = "-" + hashlib.sha256(dotted.encode()).hexdigest()[:8]
    return key[: MAX_KEY_CHARACTERS - len(suffix)] + suffix


def _texts(config: Config, measured: Mapping[str, Any], manifest: Mapping[str, Any]) -> dict[str, str]:
    converter = manifest["converter"]
    commit, is_dirty = _git_state()
    delegated = measured.get(f"delegated_{summary.primary_metric(measured)}", "not measured")
    texts = {
        "target": config.target.name,
        "backend": config.target.backend,
        "model": config.model.name,
        "dataset": config.dataset.name,
        "task": config.task.name,
        "quantization": config.quantization.name,
        "flavor": converter["flavor"],
        "converter": f"{converter['name']} {converter['version']}".strip(),
        **{f"converter.target.{name}": str(value) for name, value in converter["target"].items()},
        "delegated_accuracy": "measured" if summary.is_number(delegated) else str(delegated),
        **_gates(config, measured),
        **{f"version.{name}": version for name, version in manifest["versions"].items()},
        **{f"version.{name}": importlib.metadata.version(name) for name in ("mlflow", "lowerdeck")},
        **{f"tracking.{field}": str(value) for field, value in dataclasses.asdict(config.tracking).items()},
        "tracking.uri": _location(config),
        "git.commit": commit,
        "git.dirty": is_dirty,
    }
    marks = {"converter.caveat": converter["caveat"], DEFECTS_TAG: "; ".join(defects(measured))}
    return texts | {name: text for name, text in marks.items() if text}


def _of_mlflow(note: str, commit: str) -> dict[str, str]:
    """Tags with a meaning for MLflow's pages, which do not list them."""
    return {
        "mlflow.source.name": "stages/track.py",
        "mlflow.source.type": "LOCAL",
        "mlflow.note.content": note[:MAX_TAG_CHARACTERS],
        **({} if commit == "none" else {"mlflow.source.git.commit": commit}),
    }


def _location(config: Config) -> str:
    """Where the run is recorded, without a path of this machine: a local database belongs to its workspace."""
    uri = tracking_uri(config.tracking)
    return "local" if database_file(uri) is not None else redact_credentials(uri)


def _gates(config: Config, measured: Mapping[str, Any]) -> dict[str, str]:
    """Whether the build passes its gates, and the message of each that fails."""
    bounds = gates.bounds(config.gates)
    if all(bound is None for bound in bounds.values()):
        return {"gates": "none"}
    failed = gates.failed_gates(bounds, measured)
    return {"gates": "failed", "gates.failed": "; ".join(failed.values())} if failed else {"gates": "passed"}


def _git_state() -> tuple[str, str]:
    """The commit and whether anything differs from it, as texts; `none` outside a git repository."""
    commit = git_output("rev-parse", "--verify", "HEAD")
    # dvc.lock and build/ are outputs of a build, not inputs: they change before this stage runs.
    changes = git_output("status", "--porcelain", "--", ":/", ":(top,exclude,glob)**/dvc.lock", ":(exclude)build")
    if commit is None or changes is None:
        return "none", "none"
    return commit.strip(), str(bool(changes.strip())).lower()


def git_output(*arguments: str) -> str | None:
    """The standard output of git, or None if it fails or is not installed."""
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def _note(config: Config, measured: Mapping[str, Any], manifest: Mapping[str, Any]) -> str:
    """The run's description, as Markdown."""
    caveats = [*(f"Do not ship: it {defect}" for defect in defects(measured)), manifest["converter"]["caveat"]]
    lines = [line for caveat in filter(None, caveats) for line in (f"**{caveat}**", "")]
    if loss := read_quantization_loss():
        lines += [str(loss), ""]
    lines += ["| | |", "| --- | --- |"]
    for what, value in summary.rows(config, measured, manifest):
        lines.append(f"| {what} | {value.replace('|', chr(92) + '|')} |")
    return "\n".join(lines)


def _datasets(config: Config, lineage: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    dataset = lineage["links"][0]
    source = {"source": config.dataset.source, "options": config.dataset.options, "fingerprint": dataset["fingerprint"]}
    return {
        split: {
            "name": f"{config.dataset.name} {split}",
            "digest": dataset[split]["sha256"][:MAX_DIGEST_CHARACTERS],
            "source_type": "local",
            "source": json.dumps(source, sort_keys=True),
            "profile": json.dumps({"num_rows": dataset[split]["num_samples"], "sha256": dataset[split]["sha256"]}),
        }
        for split in _SPLITS
    }
