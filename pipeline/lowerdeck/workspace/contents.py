"""The files of a workspace that the package brings, and what became of them in a user's workspace.

They are the files of this repository, which is itself a workspace: no template has to be kept equal to them. conf/ is
not copied, because Hydra finds the package's options where they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lowerdeck.artifacts.files import write_bytes, write_json
from lowerdeck.config.options import package_files
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.fingerprints.digests import bytes_digest, file_digest

RECORD = Path(".lowerdeck") / "workspace.json"
PARAMS = "params.yaml"
CODE = Path("pipeline") / "lowerdeck"
"""In a workspace a link to the installed package, so that DVC notices another version of it."""
STARTER = Path(__file__).with_name("starter")
"""Files for a new workspace that this repository does not need itself."""
GITIGNORE = ".gitignore"
IGNORED_LINES = STARTER / "gitignore"
"""What the .gitignore of a workspace has beside the user's own lines."""
_PACKED = ".packed"
"""Suffix of these files in a wheel (setup.py)."""
_PATTERNS = Path(__file__).with_name("contents.txt")


@dataclass(frozen=True, kw_only=True)
class Record:
    """What `lowerdeck init` or `upgrade` last wrote into a workspace."""

    version: str
    """Version of the package."""
    files: Mapping[str, str]
    """SHA-256 by path of every file as it was written; of .gitignore, of the lines that were added to it."""


def generated_files() -> dict[str, bytes]:
    """Content by path of every file of a workspace that comes from the package, params.yaml included."""
    root = package_files()
    suffix = _PACKED if root.is_relative_to(Path(__file__).resolve().parent) else ""
    patterns = [line for line in _PATTERNS.read_text(encoding="utf-8").split() if not line.startswith("conf/")]
    found = sorted({path for pattern in patterns for path in root.glob(f"{pattern}{suffix}") if path.is_file()})
    return {path.relative_to(root).as_posix().removesuffix(suffix): path.read_bytes() for path in found}


def in_the_way(folder: Path, names: Iterable[str | Path]) -> list[str]:
    """What is no folder where one of these files in `folder` needs one: files and links to nothing, by path."""
    above = {parent for name in names for parent in Path(name).parents}
    return sorted(place.as_posix() for place in above if is_there(folder / place) and not (folder / place).is_dir())


def is_there(path: Path) -> bool:
    """Whether `path` is something, a link to nothing included."""
    return path.exists() or path.is_symlink()


def read_record(workspace: Path) -> Record:
    """What was last written into `workspace`.

    Raises:
        LowerdeckError: it is not a workspace that `lowerdeck init` made, or its record is damaged.
    """
    path = workspace / RECORD
    if not path.is_file():
        raise LowerdeckError(
            f"{workspace.absolute()} is not a workspace: {RECORD} is missing; `lowerdeck init` makes one"
        )
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return Record(version=str(values["version"]), files=dict(values["files"]))
    except (ValueError, KeyError, TypeError) as error:
        raise LowerdeckError(f"{path} is damaged ({error}); `git checkout {RECORD}` restores it") from None


def write_record(workspace: Path, files: Mapping[str, bytes]) -> None:
    """Record `files`, by path, as written by the installed version."""
    write_digests(workspace, {name: bytes_digest(content) for name, content in files.items()})


def write_digests(workspace: Path, digests: Mapping[str, str]) -> None:
    """`write_record` for files whose digests are known."""
    files = {**digests, GITIGNORE: file_digest(IGNORED_LINES)}
    write_json(workspace / RECORD, {"version": installed_version(), "files": files})


def add_ignored_lines(workspace: Path) -> tuple[str, ...]:
    """Add to .gitignore the lines that it lacks; returns them."""
    path = workspace / GITIGNORE
    before = path.read_bytes() if path.is_file() else b""  # of which git asks no encoding
    missing = [line for line in IGNORED_LINES.read_bytes().splitlines() if line not in before.splitlines()]
    if missing:
        write_bytes(path, b"\n".join([*([before.removesuffix(b"\n")] if before else []), *missing, b""]))
    return tuple(line.decode() for line in missing)


def installed_version() -> str:
    """Version of the installed package."""
    import importlib.metadata

    return importlib.metadata.version("lowerdeck")


def link_code(workspace: Path) -> bool:
    """Let `pipeline/lowerdeck` of a workspace be the running package; returns whether that changed anything.

    A folder there, as in this repository, is the workspace's own copy of the package, and stays.
    """
    place, package = workspace / CODE, Path(__file__).resolve().parents[1]
    if place.is_dir() and (not place.is_symlink() or place.resolve() == package):
        return False
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(package)
    return True
