"""Compares the program that was built with the recorded one and, if they differ, their inputs."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import read_json
from lowerdeck.config.schema import Config
from lowerdeck.provenance import lineage
from lowerdeck.release.promotion.selection import FINGERPRINTED, RecordedDifference
from lowerdeck.tracking.recorded_build import RecordedBuild

_FINGERPRINTS_OF = {
    "model": "the checkpoint, or the code of the model's factory",
    "dataset": "the data, or how it is read",
    "target": "a file that the target's options name",
}
_CONVERTER_FIELDS = ("name", "version", "flavor")


@dataclass(frozen=True, kw_only=True)
class FingerprintComparison:
    """An input of a program or an intermediate result, as recorded and here."""

    name: str
    recorded: str
    here: str


def version_differences(recorded: RecordedBuild) -> list[RecordedDifference]:
    """Packages of which another version is installed than the one that built `recorded`."""
    return [
        RecordedDifference(key=f"version of {name}", recorded=version, here=installed)
        for name, version in recorded.lineage["versions"].items()
        if (installed := importlib.metadata.version(name)) != version
    ]


def format_difference(difference: RecordedDifference) -> str:
    """A difference as text for the terminal; for a fingerprint, with what it covers."""
    key, recorded, here = difference.key, difference.recorded, difference.here
    if difference.is_new:
        return f"{key}: new since it was recorded, here {here!r}"
    section, _, name = key.partition(".")
    if name == "fingerprint" and section in FINGERPRINTED:
        return f"{key}: {_FINGERPRINTS_OF[section]} changed (recorded {_short(recorded)}, here {_short(here)})"
    return f"{key}: recorded {recorded!r}, here {here!r}"


def compare_fingerprints(recorded: RecordedBuild, config: Config) -> Iterator[FingerprintComparison]:
    """The inputs and intermediate results of the recorded program and of the one in build/, in build order.

    `config` is the resolved configuration of build/, which was built through convert.
    """
    links, versions = recorded.links, read_json(paths.MANIFEST)["versions"]
    for name, version in recorded.lineage["versions"].items():
        yield FingerprintComparison(name=f"version of {name}", recorded=version, here=versions.get(name, "none"))
    dataset = links["dataset"]
    yield _compared("dataset", dataset["fingerprint"], config.dataset.fingerprint)
    samples = lineage.samples_used(paths.CALIBRATION_SAMPLES)
    yield _compared("calibration samples", dataset["calibration"]["sha256"], samples["sha256"])
    for link in lineage.artifact_links(config):
        if link["name"] == "program":
            then, now = links["program"]["converter"], link["converter"]
            for field in _CONVERTER_FIELDS:
                yield FingerprintComparison(name=f"converter {field}", recorded=str(then[field]), here=str(now[field]))
        yield _compared(link["name"], links[link["name"]]["sha256"], link["sha256"])


def _compared(name: str, recorded: Any, here: Any) -> FingerprintComparison:
    return FingerprintComparison(name=name, recorded=str(recorded), here=str(here))


def table(found: list[FingerprintComparison]) -> list[str]:
    """One line per comparison: `same`, or both values."""
    width = max(len(comparison.name) for comparison in found)
    lines = []
    for one in found:
        both = f"differs: recorded {_short(one.recorded)}, here {_short(one.here)}"
        lines.append(f"  {one.name:{width}}  {'same' if one.recorded == one.here else both}")
    return lines


def _short(value: Any) -> str:
    """The beginning of a digest; other values unchanged."""
    text = str(value)
    return text[:12] if len(text) == 64 else text
