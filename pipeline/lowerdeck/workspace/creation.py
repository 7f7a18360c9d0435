"""`lowerdeck init`: a workspace in a user's own repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import write_bytes, write_text
from lowerdeck.config.params import with_values
from lowerdeck.config.yaml_text import read_mapping
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.execution.hidden_modules import FOLDERS, beside_folder
from lowerdeck.registry.components import did_you_mean
from lowerdeck.workspace import contents

DEFAULT_EXAMPLE = "pictures"
_EXAMPLES = contents.STARTER / "examples"
_README = "README.md"
_README_BESIDE = "LOWERDECK.md"
"""Name of the workspace's page in a repository that has a README.md."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """What a new workspace builds first."""

    name: str
    description: str
    params: Mapping[str, Any]
    """Values for params.yaml."""


def examples() -> list[Example]:
    """What `lowerdeck init --from` accepts."""
    found = []
    for path in sorted(_EXAMPLES.glob("*.yaml")):
        description = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        found.append(Example(name=path.stem, description=description, params=read_mapping(path)))
    return found


def create(folder: Path, example: str = DEFAULT_EXAMPLE) -> list[str]:
    """Make a workspace in `folder`, which may be a repository with other files; returns the files written, in order.

    Nothing is written if a file that a workspace needs is there with other content.

    Raises:
        LowerdeckError: there is such a file, it is a workspace already, git is not installed or would ignore it, or
            git or DVC fails.
    """
    chosen = _example(example)
    if (folder / contents.RECORD).is_file():
        raise LowerdeckError(f"{folder} is a workspace already; `lowerdeck upgrade` brings it up to date")
    generated = contents.generated_files()
    files = {**generated, **_starter(folder)}
    _check_free(folder, files)
    if shutil.which("git") is None:
        raise LowerdeckError("git is not installed, and DVC needs it; install it (Debian: `apt-get install git`)")
    root = _root(folder)
    if root:
        # Of files in build/, lines of the workspace's own .gitignore decide, unless the folder itself is ignored.
        build = paths.BUILD.as_posix()
        _check_not_ignored(folder.resolve(), [*generated, build, f"{build}/"])
    folder.mkdir(parents=True, exist_ok=True)
    written = [name for name, content in files.items() if _write(folder / name, content)]
    written += [contents.GITIGNORE] if contents.add_ignored_lines(folder) else []
    _make_repository(folder, root)
    contents.link_code(folder)
    if chosen.params:  # late, because another params.yaml is one of the user's if what is above ended early
        params = folder / contents.PARAMS
        write_text(params, with_values(params, chosen.params))
    contents.write_record(folder, generated)
    return written


def _example(name: str) -> Example:
    known = {example.name: example for example in examples()}
    if name not in known:
        raise LowerdeckError(f"there is no example {name!r}; there are: {', '.join(known)}.{did_you_mean(name, known)}")
    return known[name]


def _starter(folder: Path) -> dict[str, bytes]:
    """Files of a new workspace that this repository does not need, by path."""
    files = {path.relative_to(contents.STARTER).as_posix(): path.read_bytes() for path in _starter_paths()}
    if (folder / _README).exists():
        files[_README_BESIDE] = files.pop(_README)
    return files


def _starter_paths() -> list[Path]:
    found = sorted(path for path in contents.STARTER.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return [path for path in found if path.parent != _EXAMPLES and path != contents.IGNORED_LINES]


def _check_free(folder: Path, files: Mapping[str, bytes]) -> None:
    for place in (folder, *folder.parents):
        if contents.is_there(place) and not place.is_dir():
            raise LowerdeckError(f"{place} is a {'link to nothing' if place.is_symlink() else 'file'}")
    taken = [name for name, content in files.items() if _differs(folder / name, content)]
    if (folder / contents.CODE).is_dir() and not (folder / contents.CODE).is_symlink():
        taken.append(contents.CODE.as_posix())
    taken += contents.in_the_way(folder, [*files, contents.CODE, contents.RECORD, paths.CONFIG])
    if taken:
        raise LowerdeckError(
            f"{', '.join(taken)} in {folder.absolute()} would be overwritten, and nothing was written. Move them away, "
            "or make the workspace in a folder of its own: `lowerdeck init deploy`"
        )
    for name in FOLDERS:
        if (folder / f"{name}.py").is_file():
            raise LowerdeckError(
                f"{beside_folder(name, f'{name}/__init__.py' in files)}; nothing was written. Rename {name}.py, or "
                "make the workspace in a folder of its own: `lowerdeck init deploy`"
            )


def _differs(path: Path, content: bytes) -> bool:
    return contents.is_there(path) and (not path.is_file() or path.read_bytes() != content)


def _write(path: Path, content: bytes) -> bool:
    """Write a file unless it is there; returns whether it was not."""
    if path.is_file():
        return False
    write_bytes(path, content)
    return True


def _root(folder: Path) -> str:
    """The root of the git repository that `folder` is or will be in; empty without one.

    Raises:
        LowerdeckError: there is one that git refuses, e.g. because it belongs to somebody else.
    """
    done = _git_around(folder.resolve(), "rev-parse", "--show-toplevel")
    if done.returncode and "not a git repository (or any" not in done.stderr:
        raise LowerdeckError(f"nothing was written: git refuses the repository of {folder}: {done.stderr.strip()}")
    return "" if done.returncode else done.stdout.strip()


def _check_not_ignored(folder: Path, names: Sequence[str]) -> None:
    """Raise LowerdeckError if git ignores a file or folder of the workspace, which DVC then refuses or does not see."""
    asked = "\0".join(f"{folder}/{name}" for name in names)
    done = _git_around(folder, "check-ignore", "--verbose", "-z", "--stdin", given=asked)
    fields = done.stdout.split("\0")
    for source, line, pattern, path in zip(fields[::4], fields[1::4], fields[2::4], fields[3::4], strict=False):
        is_of_content = path.endswith("/") and not pattern.endswith("/")  # such as `/build/*`
        if not pattern.startswith("!") and not is_of_content:
            raise LowerdeckError(
                f"nothing was written: git would ignore {path} by line {line} of {source}, {pattern!r}, and a "
                "workspace has to be committed. Remove that line, or let it begin with `/` if it is for another folder"
            )


def _git_around(folder: Path, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run git in `folder`, or in the nearest folder around it that exists."""
    around = next(place for place in (folder, *folder.parents) if place.is_dir())
    environment = os.environ | {"LC_ALL": "C"}  # messages are compared
    return subprocess.run(
        ["git", *arguments], cwd=around, env=environment, input=given, capture_output=True, text=True, check=False
    )


def _make_repository(folder: Path, root: str) -> None:
    """Let git and DVC know `folder`, unless they do; `root` as for `_root`.

    Raises:
        LowerdeckError: one of them fails.
    """
    if not root:
        _run(["git", "init", "--quiet"], folder)
        root = str(folder.resolve())
    if not (folder / ".dvc").is_dir():
        below = [] if folder.samefile(root) else ["--subdir"]
        _run([sys.executable, "-P", "-m", "dvc", "init", "--quiet", *below], folder)
        for key in ("core.analytics", "core.check_update"):  # a build must not wait for a network
            _run([sys.executable, "-P", "-m", "dvc", "config", key, "false"], folder)


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LowerdeckError(f"`{' '.join(command)}` failed in {folder}: {(done.stderr or done.stdout).strip()}")
