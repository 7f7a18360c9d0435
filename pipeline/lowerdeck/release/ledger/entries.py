"""Entries of the ledger: one for each target, flavor and quantization of a model, in one YAML file per model."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lowerdeck.artifacts.files import write_text
from lowerdeck.config.problems import raise_problems, validate
from lowerdeck.config.schema import Config, Strict
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.evaluation.defects import defects
from lowerdeck.evaluation.intervals import HIGH, LOW
from lowerdeck.fingerprints.keys import build_key
from lowerdeck.report import summary
from lowerdeck.tracking.content import flat

TOLERANCES_NAME = "tolerances.yaml"
"""The only file in the folder without entries."""
_SIGNIFICANT_DIGITS = 6
"""Digits stored of metrics that are not counts: further digits differ between machines."""
_HEADING = "# Written by `lowerdeck ledger update`; docs/promote.md describes the fields.\n"


DIFFERENT_BUILDS = "are those of different builds: the last build was not completed. `dvc repro` completes it"
_OF_DEVICE = ("device", "device_provenance", "device_program_sha256", "device_runtime_sha256")


@dataclass(frozen=True, kw_only=True)
class Entry(Strict):
    """One build of a model."""

    target: str
    """The target, with `+` and its fallback where it has one."""
    flavor: str
    quantization: str
    dataset: str
    caveat: str | None = None
    """The converter's note on its programs, e.g. that they run on the host only."""
    defects: tuple[str, ...] = ()
    """Why the build must not ship."""
    metrics: dict[str, int | float]
    """The measured, counted and estimated metrics of metrics.json; names begin with their provenance."""
    device: dict[str, str] = field(default_factory=dict)
    """Where the metrics of a device come from: its name, provenance, and SHA-256 of the program and of its runtime."""
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    """95 % intervals of the metrics that have one."""
    not_measured: dict[str, str] = field(default_factory=dict)
    """Accuracies without a value, and why."""
    hashes: dict[str, str]
    """The build key, and SHA-256 of the inputs and results in the lineage."""
    versions: dict[str, str]
    """Versions of packages and of the converter."""

    @property
    def name(self) -> str:
        """Name of the entry within its model."""
        return f"{self.target} / {self.flavor} / {self.quantization}"


Ledger = dict[str, dict[str, Entry]]
"""Model -> name of an entry -> entry."""


def entry_of(config: Config, metrics: Mapping[str, Any], lineage: Mapping[str, Any]) -> Entry:
    """The entry of a build, from its resolved configuration, all its metrics and lineage.json.

    Raises:
        LowerdeckError: configuration and lineage are those of different builds.
    """
    links = {link["name"]: link for link in lineage["links"]}
    converter = links["program"]["converter"]
    if build_key(config, {"converter": converter, "versions": lineage["versions"]}) != lineage["build_key"]:
        raise LowerdeckError(f"configuration and lineage {DIFFERENT_BUILDS}")
    values = dict(flat(metrics))
    ends = {name: (name + LOW, name + HIGH) for name in values if {name + LOW, name + HIGH} <= values.keys()}
    primary = summary.primary_metric(metrics)
    program_metrics = {f"{program}_{primary}" for program in ("float", "quantized", "delegated")}
    numbers = {name for name, value in values.items() if summary.is_number(value)}
    numbers -= {end for pair in ends.values() for end in pair}
    return Entry(
        target="+".join(filter(None, (config.target.name, config.target.fallback))),
        flavor=converter["flavor"],
        quantization=config.quantization.name,
        dataset=config.dataset.name,
        caveat=converter["caveat"],
        defects=defects(metrics),
        metrics={name: _rounded(value) for name, value in values.items() if name in numbers},
        device={name: str(metrics[name]) for name in _OF_DEVICE if name in metrics},
        intervals={name: (_rounded(values[low]), _rounded(values[high])) for name, (low, high) in ends.items()},
        not_measured={
            name: value for name, value in values.items() if name in program_metrics and isinstance(value, str)
        },
        hashes={"build_key": lineage["build_key"], **{name: str(link["sha256"]) for name, link in links.items()}},
        versions={**lineage["versions"], str(converter["name"]): str(converter["version"])},
    )


def _rounded(value: Any) -> int | float:
    return value if isinstance(value, int) else float(f"{value:.{_SIGNIFICANT_DIGITS}g}")


@dataclass(frozen=True, kw_only=True)
class Updated:
    """What `update` changed in the ledger, by names of entries with their models."""

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)


def update(folder: Path, builds: Iterable[tuple[str, Entry]]) -> Updated:
    """Write the entries of `builds`, each with its model, into the ledger in `folder`; other entries stay.

    Files with names other than `file_name`, which earlier versions gave them, are renamed.

    Raises:
        LowerdeckError: two builds have the same entry, or a file of the ledger cannot be read.
    """
    given: Ledger = {}
    for model, entry in builds:
        if entry.name in given.setdefault(model, {}):
            raise LowerdeckError(
                f"several of these builds are {model}: {entry.name}, for which the ledger has one entry; choose one of "
                "them, e.g. by its run's id"
            )
        given[model][entry.name] = entry
    updated, files = Updated(), _files_in(folder)
    ledger = dict(files.values())
    renamed = {Path(file): model for file, (model, _) in files.items() if not _is_named(file, model)}
    # First, because another model of these builds may get the name of such a file.
    given = {model: {} for model in renamed.values()} | given
    for model, entries in given.items():
        known = ledger.get(model, {})
        for name, entry in entries.items():
            kind = "added" if name not in known else "unchanged" if known[name] == entry else "changed"
            getattr(updated, kind).append(f"{model}: {name}")
        write_text(folder / file_name(model), rendered(model, known | entries))
    for file in renamed.keys() - {folder / file_name(model) for model in given}:
        file.unlink()
    return updated


def read(folder: Path) -> Ledger:
    """The ledger in `folder`; empty if there is none yet.

    Raises:
        LowerdeckError: one of its files cannot be read, or two are of the same model.
    """
    return dict(_files_in(folder).values())


def _files_in(folder: Path) -> dict[str, tuple[str, dict[str, Entry]]]:
    """The ledger in `folder`: path of a file -> its model, and the model's entries."""
    paths = sorted(path for path in folder.glob("*.yaml") if path.name != TOLERANCES_NAME)
    files = {path.as_posix(): _file(path.as_posix(), path.read_text(encoding="utf-8")) for path in paths}
    file_of: dict[str, str] = {}
    for name, (model, _) in files.items():
        if (other := file_of.setdefault(model, name)) != name:
            raise LowerdeckError(
                f"{other} and {name} are both of the model {model!r}; delete the one that is out of date. "
                f"`lowerdeck ledger update` writes {file_name(model)}"
            )
    return files


def parsed(texts: Mapping[str, str], revision: str) -> Ledger:
    """The ledger at a git revision, from the content of its files by path.

    Of several files of a model, which nobody can delete there, the one counts that is named as `update` names it.

    Raises:
        LowerdeckError: a file has no valid entries; the message names it.
    """
    files = {name: _file(f"{name} at {revision}", text) for name, text in texts.items()}
    return dict(files[name] for name in sorted(files, key=lambda name: _is_named(name, files[name][0])))


def _is_named(file: str, model: str) -> bool:
    return Path(file).name == file_name(model)


def _file(name: str, text: str) -> tuple[str, dict[str, Entry]]:
    """The model and the entries in the content of a file of the ledger, which messages call `name`."""
    import yaml

    try:
        values = yaml.safe_load(text)
        model, stored = str(values["model"]), dict(values["entries"])
    except (yaml.YAMLError, TypeError, KeyError, ValueError) as error:
        raise LowerdeckError(f"{name} is not a file of the ledger: {error}; restore it with `git checkout`") from None
    entries = {}
    for key, entry in stored.items():
        entries[key], problems = validate(Entry, entry, f"{name}: {key}")
        raise_problems(problems)
    return model, entries


def rendered(model: str, entries: Mapping[str, Entry]) -> str:
    """The content of a model's file; equal entries give equal bytes."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes one line per metric and per interval, so that a diff shows what changed."""

    Dumper.add_representer(list, lambda dumper, ends: dumper.represent_sequence("tag:yaml.org,2002:seq", ends, True))
    stored = {}
    for name, entry in sorted(entries.items()):
        values = dataclasses.asdict(entry) | {"intervals": {key: list(ends) for key, ends in entry.intervals.items()}}
        stored[name] = {key: value for key, value in values.items() if value not in ({}, (), None)}
        for key in ("metrics", "intervals", "not_measured", "versions"):
            if key in stored[name]:
                stored[name][key] = dict(sorted(stored[name][key].items()))
    content = {"model": model, "entries": stored}
    return _HEADING + yaml.dump(content, Dumper=Dumper, sort_keys=False, width=1 << 16, allow_unicode=True)


def file_name(model: str) -> str:
    """Name of a model's file in the ledger: characters with a meaning in paths are replaced, names stay distinct."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", model).lstrip(".")
    name = (plain if plain == model else f"{plain}-{hashlib.sha256(model.encode()).hexdigest()[:8]}") + ".yaml"
    if name == TOLERANCES_NAME:
        raise LowerdeckError(f"a model cannot be called {model!r} in the ledger: {name} contains the tolerances")
    return name
