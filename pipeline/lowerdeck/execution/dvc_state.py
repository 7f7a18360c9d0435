"""What a killed DVC leaves behind: dvc.lock and .dvc/tmp/rwlock cut off, locks without a process, stages without DVC.

DVC writes both files in place, and refuses to run when one of them is empty or cut off. Every stage that DVC starts
therefore keeps a copy of dvc.lock, which is whole at that moment, and `lowerdeck repro` puts it back. DVC reruns what
an older dvc.lock does not know, so that an old copy costs time and never changes a result.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from lowerdeck.artifacts import paths
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.execution.environment import searching_environment
from lowerdeck.execution.hidden_modules import check_root

TEMPORARY = Path(".dvc") / "tmp"
RWLOCK = TEMPORARY / "rwlock"
KEPT = TEMPORARY / "lowerdeck"
"""Folder for the last whole copy of every dvc.lock, under the same relative path."""
QUIET_DVC = "lowerdeck.execution.quiet_dvc"
"""The module by which commands of Lowerdeck run DVC."""
LOCK = "dvc.lock"
_CONFLICT = b"<<<<<<< "
_END_S = 5.0
"""How long a stage may take to end after DVC."""


def repro_command(*arguments: str) -> tuple[list[str], dict[str, str]]:
    """The command that is `dvc repro` with `arguments`, and its environment.

    Raises:
        LowerdeckError: the workspace in the current folder has lost the git repository that DVC needs, hides a module
            from the stages, has links out of that repository in build/, or a brace in its path.
    """
    check_root(Path.cwd())
    if {"{", "}"} & set(str(Path.cwd())):
        raise LowerdeckError(
            f"{Path.cwd()} has a brace in its path, which DVC takes for a part of a template; rename the folder, or "
            "work in another one"
        )
    _check_repository(Path.cwd())
    check_links(Path.cwd())
    # Stages run `python`, which must be this interpreter even if the environment is not activated.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    return [sys.executable, "-P", "-m", QUIET_DVC, "repro", *arguments], searching_environment() | {"PATH": path}


def _check_repository(folder: Path) -> None:
    """A downloaded archive and `COPY` in a Dockerfile leave .git behind, and DVC then only says that it is missing."""
    if (folder / ".dvc" / "config").is_file() and _git_root(folder) is None and _needs_git(folder):
        raise LowerdeckError(
            f"{folder} is in no git repository, which DVC needs; run `git init` there, or bring .git along (archives "
            "and `COPY` in a Dockerfile may leave it out)"
        )


def check_links(workspace: Path) -> None:
    """Raise LowerdeckError if build/, or a folder in it, is a link by which outputs leave the git repository.

    DVC lists what it keeps in a .gitignore beside it, and fails once the first stage has built something.
    """
    build = workspace / paths.BUILD
    folders = [build, *sorted(build.iterdir())] if build.is_dir() else []
    links = [folder for folder in folders if folder.is_symlink() and folder.is_dir()]
    root = _git_root(workspace.resolve()) if links else None
    if root is None or not _needs_git(workspace):
        return
    kept = [workspace / output for output in _kept_outputs(workspace / "dvc.yaml")]
    for link in links:
        place = link.resolve()
        if not place.is_relative_to(root) and any(link in output.parents for output in kept):
            cache = shlex.quote(str(place / "dvc"))
            raise LowerdeckError(
                f"{link.relative_to(workspace)} is a link to {place}, outside of the git repository {root}, where DVC "
                f"keeps no outputs. Remove the link, and let DVC link single files there: `dvc cache dir --local "
                f"{cache}` and `dvc config --local cache.type symlink`"
            )


def _git_root(folder: Path) -> Path | None:
    return next((place for place in (folder, *folder.parents) if (place / ".git").exists()), None)


def _needs_git(workspace: Path) -> bool:
    from dvc.config import Config, ConfigError  # takes half a second, which few workspaces pay

    try:
        return not Config(str(workspace / ".dvc"))["core"].get("no_scm")
    except ConfigError:
        return False  # DVC says what is wrong with it


def _kept_outputs(pipeline: Path) -> list[str]:
    """Outputs of `pipeline`, a dvc.yaml, that DVC keeps in its cache, by path."""
    from lowerdeck.config.yaml_text import read_mapping

    found: list[str] = []
    with suppress(OSError, LowerdeckError, AttributeError, KeyError, TypeError):  # DVC says what is wrong with it
        for stage in read_mapping(pipeline)["stages"].values():
            for output in stage.get("outs", ()):
                options = output if isinstance(output, dict) else {output: {}}
                found += [path for path, values in options.items() if values.get("cache", True)]
    return found


def keep_locks() -> None:
    """Keep a copy of every dvc.lock of the project in the current folder, unless it is cut off.

    Call it while DVC writes none of them, for example in a stage that it has started.
    """
    from lowerdeck.artifacts.files import write_bytes

    if not TEMPORARY.is_dir():
        return
    with suppress(OSError):  # without room for a copy, an older one or git's serves
        for path in _locks():
            content, kept = path.read_bytes(), KEPT / path
            if content.endswith(b"\n") and not (kept.is_file() and kept.read_bytes() == content):
                write_bytes(kept, content)


def repair() -> list[str]:
    """Repair what a killed DVC left in the project in the current folder; returns one line for each thing done.

    Nothing is touched while a process of DVC works on the project.

    Raises:
        LowerdeckError: a dvc.lock has conflict markers, which only a person can resolve.
    """
    damaged = [path for path in _locks() if not _is_whole(path.read_bytes())]
    holders = _holders()
    if (not damaged and holders == []) or any(_living(holders)):
        return []
    done = [*_end_orphans(), *(_restore(path) for path in damaged)]
    if holders != []:
        RWLOCK.unlink(missing_ok=True)
        what = "was cut off" if holders is None else f"named {_listed(holders)}, which no longer run"
        done.append(f"{RWLOCK} {what}: removed")
    return done


def remove_dangling_links() -> list[str]:
    """Remove links to nothing from build/, at which DVC ends by `[Errno 2]`; returns one line for each.

    DVC links outputs to its cache by absolute paths where `cache.type` is symlink, so that all of them lead nowhere
    after a workspace was moved. dvc.lock has what they were: nothing is lost.
    """
    done = []
    for folder, folders, files in os.walk(paths.BUILD):
        for path in sorted(Path(folder, name) for name in (*folders, *files)):
            if path.is_symlink() and not path.exists():
                done.append(f"{path} was a link to nothing ({path.readlink()}): removed")
                path.unlink()
    return done


def altered_outputs() -> list[str]:
    """Files in build/ of which dvc.lock has another MD5, by path; folders are not looked into."""
    import yaml

    from lowerdeck.config.yaml_text import plain_values

    recorded: dict[str, str] = {}
    with suppress(OSError, yaml.YAMLError, UnicodeDecodeError, AttributeError, KeyError, TypeError):
        for stage in plain_values(Path(LOCK).read_text(encoding="utf-8"))["stages"].values():
            recorded |= {output["path"]: output["md5"] for output in stage.get("outs", ()) if "md5" in output}
    files = {Path(path): md5 for path, md5 in recorded.items() if Path(path).is_file()}
    return sorted(path.as_posix() for path, md5 in files.items() if _md5(path.read_bytes()) != md5)


def _md5(content: bytes) -> str:
    """MD5 as DVC takes it of a file."""
    import hashlib

    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _locks() -> list[Path]:
    """Every dvc.lock of the project that is there: of dvc.yaml at its root and of those in folders below it."""
    return [path for path in (Path(LOCK), *sorted(Path().glob(f"*/{LOCK}"))) if path.is_file()]


def _is_whole(content: bytes) -> bool:
    """Whether DVC wrote the file to its end: it ends in a newline, and no key is without its value."""
    import yaml

    from lowerdeck.config.yaml_text import plain_values

    if not content.endswith(b"\n"):
        return False
    try:
        values = plain_values(content.decode())
    except (yaml.YAMLError, UnicodeDecodeError):
        return False
    return isinstance(values, dict) and "schema" in values and not _lacks_value(values)


def _lacks_value(value: Any, depth_in_params: int = 0) -> bool:
    """Whether a key has no value, except a parameter, whose value may be null: these are below `params: FILE:`."""
    if isinstance(value, dict) and depth_in_params < 2:
        below = (
            (each, depth_in_params + 1 if depth_in_params or key == "params" else 0) for key, each in value.items()
        )
        return any(_lacks_value(each, depth) for each, depth in below)
    if isinstance(value, list) and not depth_in_params:
        return any(map(_lacks_value, value))
    return value is None


def _restore(path: Path) -> str:
    """Replace a damaged dvc.lock by its kept copy or the committed one; returns what was done."""
    from lowerdeck.artifacts.files import write_bytes

    content, kept, aside = path.read_bytes(), KEPT / path, KEPT / f"{path}.damaged"
    if _CONFLICT in content:
        raise LowerdeckError(
            f"{path} has the conflict markers of a merge; `git checkout --ours {path}` or `--theirs` chooses a side, "
            "and `lowerdeck repro` builds what it lacks"
        )
    write_bytes(aside, content)
    what = f"{path} was cut off when DVC was killed"
    if kept.is_file() and _is_whole(whole := kept.read_bytes()):
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(kept.stat().st_mtime))
        source = f"restored the copy of {when}"
    elif (whole := _committed(path)) and _is_whole(whole):
        source = "restored the committed one"
    else:
        path.unlink()
        return f"{what}, and there is no copy: removed, so that its stages run again (the damaged file is {aside})"
    write_bytes(path, whole)
    return f"{what}: {source} (the damaged file is {aside})"


def _committed(path: Path) -> bytes:
    """The content of `path` in git's HEAD; empty without git or a commit that has it."""
    with suppress(OSError):
        shown = subprocess.run(["git", "show", f"HEAD:./{path.as_posix()}"], capture_output=True, check=False)
        return shown.stdout if shown.returncode == 0 else b""
    return b""


def _holders() -> list[tuple[int, str]] | None:
    """Process id and command of every entry of DVC's rwlock; None if the file is cut off."""
    try:
        locks = json.loads(RWLOCK.read_bytes())
        infos = [*locks.get("write", {}).values(), *(info for each in locks.get("read", {}).values() for info in each)]
        return sorted({(int(info["pid"]), str(info["cmd"])) for info in infos})
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _living(holders: list[tuple[int, str]] | None) -> Iterator[int]:
    """Ids of processes that hold DVC's locks, or that are DVC at work in the project."""
    import psutil

    root, written = Path.cwd(), RWLOCK.stat().st_mtime if RWLOCK.is_file() else 0.0
    commands = dict(holders or ())
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            words = process.cmdline()
            if not words:  # a process that has ended and waits for its parent, or one of the kernel
                continue
            arguments = commands.get(process.pid, "").split()[1:]
            is_holder = process.pid in commands and " ".join(words).endswith(" ".join(arguments))
            # Ids are used again: a process that started after the locks were last written holds none.
            if (is_holder and process.create_time() <= written + 1) or (_is_dvc(words) and _works_in(process, root)):
                yield process.pid
        except psutil.NoSuchProcess:
            continue
        except psutil.AccessDenied:
            if process.pid in commands:
                yield process.pid  # another user's, about which nothing more can be found out


def _end_orphans() -> Iterator[str]:
    """End stages that DVC started here, and that have not noticed its end: they would overwrite what is built next."""
    import psutil

    stages: list[psutil.Process] = []
    forks: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            words = process.cmdline()
            is_stage = any(before == "-m" and word.startswith("stages.") for before, word in itertools.pairwise(words))
            is_fork = any(Path(word).name == "preload.py" for word in words)
            if (is_stage or is_fork) and Path(process.cwd()) == Path.cwd():
                (stages if is_stage else forks).append(process)
    by_hand = [process for process in stages if "DVC_STAGE" not in _environment_of(process)]
    orphans = [process for process in stages if process not in by_hand] + ([] if by_hand else forks)
    _, left = psutil.wait_procs(orphans, timeout=_END_S)  # as a rule they are ending already
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
            yield f"process {process.pid}, a stage of the DVC that was killed: ended"
    psutil.wait_procs(left, timeout=_END_S)


def _environment_of(process: Any) -> dict[str, str]:
    import psutil

    with suppress(psutil.Error):
        return dict(process.environ())
    return {}


def _is_dvc(words: list[str]) -> bool:
    names = [Path(word).name for word in words[:2]]
    modules = [module for option, module in itertools.pairwise(words) if option == "-m"]
    return "dvc" in names or not {"dvc", QUIET_DVC}.isdisjoint(modules)


def _works_in(process: Any, root: Path) -> bool:
    folder = Path(process.cwd())
    return folder == root or folder.is_relative_to(root)


def _listed(holders: list[tuple[int, str]] | None) -> str:
    return ", ".join(f"process {pid} ({command})" for pid, command in holders or ())
