"""Digests of what stages depend on: files, folders, versions. A file is read once, and again when it has changed."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ABSENT = "absent"
"""Digest of a path at which there is nothing."""
IGNORED = ("__pycache__", ".ipynb_checkpoints")


def digest(value: Any) -> str:
    """SHA-256 over `value` as canonical JSON, hexadecimal."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def folder_digest(files: Mapping[str, str]) -> str:
    """Digest of a folder: of its files' relative paths and SHA-256."""
    return digest(sorted(files.items()))


class Files:
    """SHA-256 of files and folders; what was hashed once counts until size or time of change differ."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, int, int], str]] = {}

    def digest(self, place: Path) -> str:
        """Of a file its SHA-256, of a folder that of all it holds, `ABSENT` where there is neither."""
        if place.is_dir():
            return folder_digest({name: self._file(place / name) for name in _files_below(place)})
        return self._file(place) if place.is_file() else ABSENT

    def _file(self, path: Path) -> str:
        status = path.stat()
        stamp = (status.st_size, status.st_mtime_ns, status.st_ino)
        known = self._known.get(str(path))
        if known is None or known[0] != stamp:
            with path.open("rb") as file:
                known = stamp, hashlib.file_digest(file, "sha256").hexdigest()
            self._known[str(path)] = known
        return known[1]


FILES = Files()
"""Of this process: what it hashed once, it need not hash again."""


def _files_below(folder: Path) -> list[str]:
    found = []
    for root, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if name not in IGNORED]
        found += [os.path.relpath(os.path.join(root, name), folder) for name in names if not name.endswith(".pyc")]  # noqa: PTH118  many files
    return sorted(found)


def tool_versions(pyproject: Path) -> dict[str, str]:
    """Versions of Python, of all that pyproject.toml says the pipeline calls, and of installed Neutron converters."""
    import tomllib

    declared = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]["dependencies"]
    names = {found.name for found in importlib.metadata.distributions() if "neutron" in (found.name or "").lower()}
    for requirement in declared:
        names |= _names(requirement)
    machine = {"python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}
    return machine | {name: _version(name) for name in sorted(names)}


def _names(requirement: str) -> set[str]:
    """The distribution that a requirement names, and those that its extras bring: Vela comes with one."""
    from packaging.requirements import Requirement

    wanted = Requirement(requirement)
    names = {wanted.name}
    for extra in wanted.extras:
        for brought in map(Requirement, importlib.metadata.requires(wanted.name) or ()):
            if brought.marker is not None and brought.marker.evaluate({"extra": extra}):
                names.add(brought.name)
    return names


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ABSENT
