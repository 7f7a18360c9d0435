"""What compose has read, so that no stage's result is recorded as that of other code or data than it was made of.

compose records size, times and SHA-256 of every file of which it computes a fingerprint. A stage compares these before
it replaces an output, and at its end. As a rule, only sizes and times are looked at.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import (
    as_written,
    before_replacing,
    read_json,
    write_json,
    write_text,
    write_unless_equal,
)
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.fingerprints.data import files_read
from lowerdeck.fingerprints.digests import Seen, bytes_digest, file_digest, files_below, files_seen, stamp_of

_COMPOSE = "compose"
_RECHECK_S = 1.0
"""Time after which files are looked at again: a stage may replace many outputs."""
_SECTIONS_WITH_FILES = ("model", "dataset")


class ComposedInputs:
    """What compose reads."""

    def __init__(self, given: Collection[Path], seen: Mapping[Path, Seen]) -> None:
        """`given` are the files of data and models; all of `seen` but these are code and configuration."""
        self.given, self._seen = given, seen

    def write(self, code: Mapping[str, str], code_files: Mapping[str, Collection[Path]], config: str) -> None:
        """Write the outputs of compose, build/code.json and build/config.yaml, and for the stages what it read.

        Args:
            code: Digest of the code of each stage.
            code_files: The files of that code.
            config: Text of the resolved configuration.
        """
        import json

        write_json(paths.CODE, code)
        write_unless_equal(paths.CONFIG, config)

        given = {_shown(path) for path in self.given}
        files: dict[str, dict[str, Any]] = {"given": {}, "code": {}}
        stages = {stage: sorted(map(_shown, used)) for stage, used in code_files.items()}
        for path, (stamp, sha256) in self._seen.items():
            files["given" if (name := _shown(path)) in given else "code"][name] = [*stamp, sha256]
        write_text(paths.READ, json.dumps({"of": _outputs_of_compose(), "stages": stages, **files}) + "\n")


@contextmanager
def recorded(*sources: Path) -> Iterator[ComposedInputs]:
    """Record what compose reads meanwhile, beside all files of `sources`.

    Raises:
        LowerdeckError: something of it changed before the end.
    """
    with files_read() as given, files_seen() as seen:
        for source in sources:
            for file in [source / name for name in files_below(source)] if source.is_dir() else [source]:
                if file.is_file():
                    file_digest(file)
        yield ComposedInputs(given, seen)
    for path, known in seen.items():
        if _differs(path, known):
            raise LowerdeckError(f"{_shown(path)} changed while {_COMPOSE} ran; run `lowerdeck repro` again")


@contextmanager
def unchanged(stage: str) -> Iterator[None]:
    """Refuse outputs of `stage` where what it read is not, or not all the time, what compose read.

    Raises:
        LowerdeckError: a file changed; names it. Outputs are as before.
    """
    check = _check_of(stage) if stage != _COMPOSE else None
    if check is None:
        yield
        return
    with before_replacing(check):
        yield
    check(force=True)


def _check_of(stage: str) -> _Check | None:
    """The check of a stage; None where nothing was recorded for the configuration that is there."""
    if not all(path.is_file() for path in (paths.READ, paths.CODE, paths.CONFIG)):
        return None
    record = read_json(paths.READ)
    with as_written(paths.READ):
        return _Check(stage, record) if record["of"] == _outputs_of_compose() else None


class _Check:
    """Compares files with what compose read, and with what they were when the stage began."""

    def __init__(self, stage: str, record: Mapping[str, Any]) -> None:
        self._stage, self._folder = stage, Path.cwd()
        self._files = {
            kind: {self._folder / name: (tuple(stamp), sha256) for name, (*stamp, sha256) in record[kind].items()}
            for kind in ("code", "given")
        }
        used = {self._folder / name for name in record["stages"].get(stage, ())}
        self._files["code"] = {path: known for path, known in self._files["code"].items() if path in used}
        self._begun = {path: stamp_of(path) for files in self._files.values() for path in files}
        self._checked_s = float("-inf")

    def __call__(self, *, force: bool = False) -> None:
        """Raise LowerdeckError if something that the stage reads changed; at most once a second unless `force`."""
        if not force and time.monotonic() - self._checked_s < _RECHECK_S:
            return
        self._checked_s = time.monotonic()
        for kind, files in self._files.items():
            used = next((path for path, known in files.items() if self._has_changed(files, path, known)), None)
            if used is not None and (kind == "code" or self._reads_given()):
                raise LowerdeckError(self._message(_shown(used, self._folder), used, files[used]))

    def _message(self, name: str, path: Path, known: Seen) -> str:
        if path.is_file() and file_digest(path) == known[1]:
            return (
                f"{name} changed while {self._stage} ran, and has again the content that {_COMPOSE} read: what "
                f"{self._stage} read in between is unknown. Run `lowerdeck repro` again; if code of the model or data "
                "set writes it, let it leave a file alone that has the content already. What was built before is "
                "unchanged"
            )
        return (
            f"{name} changed after {_COMPOSE} had read it, so that {self._stage} may have used either version; "
            f"run `lowerdeck repro` again, and `dvc repro --force {_COMPOSE}` before it where DVC does not "
            "watch the file. What was built before is unchanged"
        )

    def _has_changed(self, files: dict[Path, Seen], path: Path, known: Seen) -> bool:
        stamp = stamp_of(path)
        if stamp != self._begun[path] or _differs(path, known):
            return True
        if stamp is not None and stamp != known[0]:
            files[path] = (stamp, known[1])  # the same content with another time need not be read at every check
        return False

    def _reads_given(self) -> bool:
        """Whether the stage depends on the configuration of a model or of data."""
        from lowerdeck.config.yaml_text import plain_values

        stages = plain_values((self._folder / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
        files = [params for params in stages.get(self._stage, {}).get("params", ()) if isinstance(params, Mapping)]
        read = {key for params in files for key in params.get(str(paths.CONFIG), ())}
        return not read.isdisjoint(_SECTIONS_WITH_FILES)


def _differs(path: Path, known: Seen) -> bool:
    """Whether a file is another one than was read; the same content with another time is the same."""
    if stamp_of(path) == known[0]:
        return False
    return not path.is_file() or file_digest(path) != known[1]


def _outputs_of_compose() -> str:
    return bytes_digest(paths.CODE.read_bytes() + paths.CONFIG.read_bytes())


def _shown(path: Path, folder: Path | None = None) -> str:
    """`path`, below the current folder by its place there, so that the folder may be moved."""
    place, folder = Path(os.path.abspath(path)), folder or Path.cwd()  # noqa: PTH100  `resolve` would follow links
    return str(place.relative_to(folder) if place.is_relative_to(folder) else place)
