"""What is recorded of a build, written into its bundle: build key, accuracy and gates."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from lowerdeck.firmware.bundle import METADATA, README
from lowerdeck.firmware.project import RECORD, record_header


def recorded(
    files: Mapping[str, bytes], build_key: str, results: Sequence[tuple[str, str]], threshold: float | None = None
) -> dict[str, bytes]:
    """The bundle with its record; the same bytes for equal arguments.

    README.md gets a section, src/build_record.h the key and a comment, metadata.json the entry `record`. A bundle that
    could not be made is returned as it is.

    Args:
        files: The files of the bundle, by name.
        build_key: By which `lowerdeck` finds the MLflow run, and with it the git revision.
        results: (what, value), e.g. accuracies, gates and defects.
        threshold: See `record_header`.
    """
    if RECORD not in files:
        return dict(files)
    lines = [f"{what}: {value}" for what, value in results]
    header = record_header(build_key, [f"Build {build_key}", *lines], threshold)
    readme = files[README].decode()
    title, _, rest = readme.partition("\n\n")
    found_by = f"lowerdeck compare \"tags.`lowerdeck.build_key` = '{build_key}'\""
    listed = "\n".join(f"- {line}" for line in lines)
    section = (
        f"## This build\n\nBuild key `{build_key}`. In the project that made it, this finds its MLflow run, which "
        f"names the git revision:\n\n    {found_by}\n\n{listed}"
    )
    made = {**files, RECORD: header.encode(), README: f"{title}\n\n{section}\n\n{rest}".encode()}
    metadata = json.loads(made.pop(METADATA))
    metadata["record"] = {"build_key": build_key, "results": dict(results)}
    metadata["files"] = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(made.items())}
    made[METADATA] = (json.dumps(metadata, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()
    return dict(sorted(made.items()))
