"""The sweep's copy of code and configuration, and the workspaces in which points run on it.

Stages run on the copy, so editing the project does not affect a running sweep. Data is too large to be copied; it is
linked, and hashed again for every point.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from lowerdeck.artifacts.files import beside
from lowerdeck.config.options import conf_folders
from lowerdeck.fingerprints.digests import files_below
from lowerdeck.sweeps.declaration import Stage

SWEEPS = Path("sweeps")
DATA = "data"
CONF = "conf"
ALWAYS = ("params.yaml", "dvc.yaml")
_NEVER_LINKED = ("build", "dvc.lock", "mlflow", ".git", ".dvc", SWEEPS.name)


def copied_entries(stages: Iterable[Stage]) -> list[str]:
    """Entries of the project's folder that a sweep copies: all sources in dvc.yaml there except data and conf/."""
    sources = {Path(source) for stage in stages for source in stage.sources}
    named = {source.parts[0] for source in sources if not source.is_absolute()}
    return sorted({*named, *ALWAYS} - {DATA, CONF, os.pardir})


def data_sources_of(stages: Iterable[Stage]) -> list[str]:
    """Data that dvc.yaml names; it is not copied."""
    return sorted({path for stage in stages for path in stage.sources if path.partition("/")[0] == DATA})


def take(project: Path, entries: Iterable[str]) -> Path:
    """Copy `entries` of `project` to a temporary folder in sweeps/, which `keep` moves to its final place.

    conf/ has all options there, so that a later version of the package does not affect the sweep.
    """
    sweeps = project / SWEEPS
    copy = beside(sweeps / "new")
    copy.mkdir(parents=True)
    for entry in entries:
        source = project / entry
        if source.is_dir():
            _copy_folder(source, copy / entry)
        elif source.is_file():
            shutil.copy2(source, copy / entry)
    for folder in reversed(conf_folders(project / CONF)):  # the package's options, below those of the project
        _copy_folder(folder, copy / CONF)
    return copy


def _copy_folder(source: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)  # also one without files
    for name in files_below(source):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / name, target / name)


def keep(copy: Path, place: Path) -> None:
    """Move `copy` to `place` unless that exists already."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.is_dir():
        with suppress(OSError):  # another process was quicker
            copy.rename(place)


def make_workspace(folder: Path, project: Path, copy: Path, params: str) -> None:
    """Create a folder in which stages run as in the project, with the sweep's code and configuration and a new build/.

    Args:
        folder: The folder; existing content is removed.
        project: Source of entries that the sweep did not copy, such as data.
        copy: The sweep's copy.
        params: Text of params.yaml.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for entry in os.scandir(copy):
        (folder / entry.name).symlink_to(Path(entry.path).absolute())
    for entry in os.scandir(project):
        place = folder / entry.name
        if entry.name not in _NEVER_LINKED and not place.is_symlink():
            place.symlink_to(Path(entry.path).absolute())
    (folder / "params.yaml").unlink(missing_ok=True)
    (folder / "params.yaml").write_text(params, encoding="utf-8")
    (folder / "build").mkdir()
