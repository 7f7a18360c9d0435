"""Old files that can be removed: leftovers in build/, and objects of DVC's cache that nothing refers to any more."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowerdeck.artifacts import paths
from lowerdeck.compat.terminal import progress_bar
from lowerdeck.config.yaml_text import plain_values
from lowerdeck.contracts.errors import LowerdeckError

_KEPT_NAMES = (".gitignore",)


@dataclass(frozen=True, kw_only=True)
class Removable:
    """Something that can be removed, a row of the table."""

    what: str
    size_bytes: int
    last_used: float
    """Seconds since 1970."""


@dataclass(frozen=True, kw_only=True)
class Removables:
    """What can be removed of one kind, all at once."""

    kind: str
    """`build`, `sweep`, `store`, `run` or `cache`."""
    items: Sequence[Removable] = ()
    remove: Callable[[], None] = lambda: None
    """Removes all items; without effect if there are none."""


def remove_below(project: Path, place: Path) -> None:
    """Remove a file or a folder; links are removed and not followed.

    Raises:
        LowerdeckError: `place` is not below `project`, where nothing is ever removed.
    """
    place = place.parent.resolve() / place.name
    if not place.is_relative_to(project.resolve()) or place == project.resolve():
        raise LowerdeckError(f"{place} is outside of the project {project.resolve()}, and stays")
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def is_inside(project: Path, place: Path) -> bool:
    """Whether `place` with all links resolved is below `project`."""
    return place.resolve().is_relative_to(project.resolve())


def size_of(place: Path) -> int:
    """Bytes of a file, or of all files below a folder without following links."""
    if place.is_symlink():
        return 0
    return sum(map(_bytes_of, place.rglob("*"))) if place.is_dir() else _bytes_of(place)


def _bytes_of(path: Path) -> int:
    with suppress(OSError):  # removed meanwhile
        return 0 if path.is_symlink() or path.is_dir() else path.stat().st_size
    return 0


def newest(files: Iterable[Path]) -> float:
    """When the newest of `files` was written, in seconds since 1970; 0 without any."""
    found = 0.0
    for file in files:
        with suppress(OSError):
            found = max(found, file.lstat().st_mtime)
    return found


def removable_folders(project: Path, kind: str, found: Iterable[tuple[Path, str, float]]) -> Removables:
    """Those of `found` that are below `project`, each given with its description and the time of its last use."""
    listed = [entry for entry in found if is_inside(project, entry[0].parent)]

    def remove() -> None:
        for place, _, _ in listed:
            remove_below(project, place)

    items = [Removable(what=what, size_bytes=size_of(place), last_used=last) for place, what, last in listed]
    return Removables(kind=kind, items=items, remove=remove)


def leftovers_of_builds(project: Path, before: float) -> Removables:
    """What is in build/ and no output of dvc.yaml, with all its files older than `before`: pages, logs, checkpoints."""
    stages = plain_values((project / "dvc.yaml").read_text(encoding="utf-8"))["stages"].values()
    entries = [entry for fields in stages for kind in ("outs", "metrics", "plots") for entry in fields.get(kind, ())]
    outputs = {project / (entry if isinstance(entry, str) else next(iter(entry))) for entry in entries}

    def unused(folder: Path) -> Iterator[Path]:
        for place in sorted(folder.iterdir()) if folder.is_dir() else ():
            if place in outputs or place.name in _KEPT_NAMES:
                continue
            if any(output.is_relative_to(place) for output in outputs):
                yield from unused(place)
            else:
                yield place

    def old() -> Iterator[tuple[Path, str, float]]:
        for place in unused(project / paths.BUILD):
            files = [path for path in (place, *place.rglob("*")) if not path.is_dir()]
            if (last_used := newest(files or [place])) < before:
                yield place, place.relative_to(project).as_posix(), last_used

    return removable_folders(project, "build", old())


def unused_cache(project: Path, before: float) -> Removables:
    """Objects of DVC's cache that are older than `before` and that neither the workspace nor a commit refers to.

    Commits are those at the end of a branch, with a tag, of an experiment, or made after `before`. A cache outside of
    the project is left alone, because other projects may use it.
    """
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with Repo(str(project)) as repo:
            found = _unused_objects(repo, project, before)
    except DvcException as error:
        raise LowerdeckError(f"DVC's cache cannot be examined: {error}; `lowerdeck repro` may repair this") from error
    if not found:
        return Removables(kind="cache")

    def remove() -> None:
        with Repo(str(project)) as repo, repo.lock:
            for place in found & _unused_objects(repo, project, before):  # a build may use one again by now
                remove_below(project, place)

    last_used = max(place.stat().st_ctime for place in found)
    what = f"{len(found)} objects of DVC's cache"
    item = Removable(what=what, size_bytes=sum(map(size_of, found)), last_used=last_used)
    return Removables(kind="cache", items=[item], remove=remove)


def _unused_objects(repo: Any, project: Path, before: float) -> set[Path]:
    from dvc.scm import NoSCM

    date = time.strftime("%Y-%m-%d", time.localtime(before))
    has_git = not isinstance(repo.scm, NoSCM)  # .git may be in a folder above
    everywhere = {"all_branches": True, "all_tags": True, "all_experiments": True, "commit_date": date}
    used: set[str] = set()
    if has_git:
        print("lowerdeck clean: asking DVC which objects of its cache each commit refers to", file=sys.stderr)
    # As `used_objs` of the repository does for all of them, without a word: a commit takes a tenth of a second.
    commits = repo.brancher(**(everywhere if has_git else {}))
    for _ in progress_bar(commits, desc="clean", unit="commit", disable=None):
        for ids in repo.index.used_objs(force=True).values():
            used |= {found.value for found in ids if found.value}
    cache = repo.cache.local
    if not is_inside(project, Path(cache.path)) or not Path(cache.path).is_dir():
        return set()
    places = (Path(cache.oid_to_path(found)) for found in cache.all() if found not in used)
    # The time of the last change of its inode: the content may be older than its place in the cache.
    return {place for place in places if place.stat().st_ctime < before}
