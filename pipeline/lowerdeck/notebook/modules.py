"""The user's modules in a process that builds more than once: in several workspaces, and while files are edited."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, suppress
from importlib.machinery import EXTENSION_SUFFIXES
from itertools import chain, takewhile
from pathlib import Path
from traceback import walk_tb
from types import ModuleType

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.fingerprints.bytecode import CLOCK_S, drop_outdated, placed_s
from lowerdeck.fingerprints.closures import IMPORTS_BY_NAME, TOOLS, files_of_package
from lowerdeck.fingerprints.digests import ABSENT, FILES
from lowerdeck.fingerprints.imports import imports_of
from lowerdeck.registry.components import is_installed
from lowerdeck.workspace.contents import PARAMS

_ADDED: dict[Path, tuple[Sequence[str], Sequence[str]]] = {}
"""What plug-ins of a workspace put on `sys.path`: they do so once, when they are imported, and may import later."""
_IMPORTED: dict[str, tuple[ModuleType, dict[str, str]]] = {}
"""A module of each of the user's packages that were loaded when a build ended, and the state in which it was imported.

See `_state`; with `_CHANGED` in it if files have changed since.
"""
_CHANGED = ""
"""What no path is."""
_LEFT_S: list[float] = []
"""When the last build ended; empty before the first one."""
_ONE_AT_A_TIME = threading.RLock()
"""Held in a workspace: the current folder and the loaded modules are those of the process, not of a thread."""
_NOT_OWN = TOOLS | sys.stdlib_module_names | {"__main__"}


@contextmanager
def in_workspace(workspace: Path | str) -> Iterator[None]:
    """Make it the current folder, from which plugins/ is imported, too, as by the command.

    Modules of other workspaces, and the user's own where a file of theirs was changed, are imported again meanwhile.
    Other threads wait for their turn.

    Raises:
        LowerdeckError: there is no such folder; one of these failed when it was imported again, or is an extension
            module that was changed.
    """
    with _ONE_AT_A_TIME:
        folder = absolute(workspace)
        if not folder.is_dir():
            what = "no folder" if folder.exists() else "not there"
            raise LowerdeckError(
                f"{folder} is {what}; `workspace` is the folder of a workspace (`lowerdeck init` makes one)"
            )
        found = list(sys.path)
        kept = [entry and _absolute(entry, Path.cwd()) for entry in found]
        _raise_if_only_new_process_sees(_own_packages())
        with chdir(folder):
            here = Path.cwd()
            hidden: dict[str, ModuleType] = {}
            for find in (_loaded_from_others, _outdated):
                hidden |= (modules := find(here))
                for name in modules:
                    del sys.modules[name]
            entered, before = time.time(), set(sys.modules)
            first, last = _ADDED.get(here, ((), ()))
            sys.path[:] = [*first, str(here), *kept, *last]  # a script in another workspace has put that one in front
            _forget_relative_places()
            try:
                yield
            except Exception as error:
                _raise_if_imported_again(error, hidden)
                raise
            finally:
                _ADDED[here] = _added({*kept, str(here)}, here)
                sys.path[:] = found
                tops = {name.partition(".")[0] for name in hidden}
                for name in {*_modules(tops), *_without_package(before)}:
                    del sys.modules[name]
                _keep_states(entered)
                sys.modules.update(hidden)
                _forget_relative_places()
                _LEFT_S[:] = [time.time()]


def absolute(path: Path | str) -> Path:
    """A path that counts from the user's folder, whichever one a build in another thread has made the current one.

    Raises:
        LowerdeckError: it is no path, or begins with the home folder of nobody.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise LowerdeckError(f"{path!r} is no path; pass a text or a pathlib.Path")
    with _ONE_AT_A_TIME:
        try:
            return Path(path).expanduser().absolute()
        except RuntimeError as error:
            raise LowerdeckError(f"{path}: there is no such home folder") from error


def _raise_if_imported_again(error: Exception, hidden: Collection[str]) -> None:
    """Say what to do if a module failed that worked before: it may register something, which libraries allow once."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__) if frame.f_code.co_name == "<module>"]
    names = {name.partition(".")[0] for name in hidden}
    failed = [name for frame in frames if (name := frame.f_globals.get("__name__", "")).partition(".")[0] in names]
    if failed and not isinstance(error, LowerdeckError):
        raise LowerdeckError(
            f"{failed[-1]} was imported again, because a file was changed or another workspace has a module of that"
            f" name, and failed: {type(error).__name__}: {error}; if it can be imported only once, restart the kernel"
        ) from error


def _forget_relative_places() -> None:
    """Python keeps where it found a relative entry of `sys.path` first, in whichever folder it is now."""
    for entry in [entry for entry in sys.path_importer_cache if not os.path.isabs(entry)]:  # noqa: PTH117  a text
        del sys.path_importer_cache[entry]


def _added(known: set[str], here: Path) -> tuple[Sequence[str], Sequence[str]]:
    """The entries of `sys.path` beside the `known` ones, absolute: those in front of them, and the others."""
    first = list(takewhile(lambda entry: entry not in known, sys.path))
    last = [entry for entry in sys.path[len(first) :] if entry not in known]
    return _all_absolute(first, here), _all_absolute(last, here)


def _all_absolute(entries: Sequence[str], here: Path) -> list[str]:
    return list(dict.fromkeys(_absolute(entry, here) for entry in entries))


def _absolute(entry: str, here: Path) -> str:
    """An entry of `sys.path` that is a file or folder in `here`, absolute; others are names for hooks of installers."""
    place = str(here / entry)
    return place if os.path.exists(place) else entry  # noqa: PTH110  one that may not be read is none


def _without_package(before: Collection[str]) -> Iterator[str]:
    """Modules beside the ones of `before` that an import which failed halfway has left behind without their package.

    `import package.module` would not set `package.module` when the package is imported again.
    """
    loaded = list(sys.modules)
    yield from (name for name in loaded if name not in before and name.partition(".")[0] not in sys.modules)


def _outdated(here: Path) -> dict[str, ModuleType]:
    """Modules of the user's packages of which a file may have been changed since its import, and of those on top.

    Without the latter, they would keep what they have imported.
    """
    import psutil

    packages = _own_packages()
    _keep_states(_LEFT_S[0] if _LEFT_S else psutil.Process().create_time())
    outdated = {name for name, modules in packages.items() if _is_outdated(name, modules)}
    for name in outdated:
        drop_outdated(_files_of(packages[name]))
    further = outdated
    while further:
        others = packages.keys() - outdated
        further = {name for name in others if not further.isdisjoint(_imported_by(packages[name], packages, here))}
        outdated |= further
    return _modules(outdated)


def _keep_states(since: float) -> None:
    """Keep the states of packages that were imported after `since`, as far as they are unchanged after it."""
    for name, modules in _own_packages().items():
        if _IMPORTED.get(name, (None,))[0] is not (package := _package(modules)):
            unsure = {_CHANGED: "perhaps"} if _changed_s(modules) > since - CLOCK_S else {}
            _IMPORTED[name] = package, _state(modules) | unsure


def _is_outdated(name: str, modules: Sequence[ModuleType]) -> bool:
    """Whether files of a package are not what they were when it was imported, or were not once.

    An edit that was taken back counts, too: packages that were imported first in between have what it was then.
    """
    package, imported = _IMPORTED[name]
    is_outdated = _state(modules) != imported
    if is_outdated:
        _IMPORTED[name] = package, imported | {_CHANGED: "once"}
    return is_outdated


def _raise_if_only_new_process_sees(packages: Mapping[str, Sequence[ModuleType]]) -> None:
    """Python has an extension module of a file once in a process, whatever is in that file later."""
    for name, modules in packages.items():
        package, imported = _IMPORTED.get(name, (None, {}))
        for file in filter(None, map(_file, modules)):
            is_extension = file.name.endswith(tuple(EXTENSION_SUFFIXES)) and package is _package(modules)
            if is_extension and imported.get(str(file)) not in (None, _digest(file)):
                raise LowerdeckError(
                    f"{file} was changed after it was imported, and Python imports an extension module once: restart"
                    " the kernel"
                )


def _own_packages() -> dict[str, list[ModuleType]]:
    """The loaded modules of each top-level package that is the user's own."""
    packages: dict[str, list[ModuleType]] = {}
    for name, module in list(sys.modules.items()):
        if (top := name.partition(".")[0]) not in _NOT_OWN:
            packages.setdefault(top, []).append(module)
    files = {name: list(filter(None, map(_file, modules))) for name, modules in packages.items()}
    is_own = {name: any(file.suffix == ".py" and not is_installed(file) for file in files[name]) for name in files}
    return {name: modules for name, modules in packages.items() if is_own[name]}


def _imported_by(modules: Iterable[ModuleType], packages: Iterable[str], here: Path) -> Iterator[str]:
    """The top-level packages that modules import: any of `packages` if modules in `here` compute names of imports.

    Libraries elsewhere often do so, but hardly when they are imported, and what they register is registered once.
    """
    for module in modules:
        with suppress(OSError, SyntaxError, ValueError):  # then it was changed itself
            file = _file(module)
            if file is not None and file.suffix == ".py":
                source = file.read_bytes()
                yield from (name.partition(".")[0] for name, _ in imports_of(source, "").names)
                if file.is_relative_to(here) and any(word in source for word in IMPORTS_BY_NAME):
                    yield from packages


def _package(modules: Iterable[ModuleType]) -> ModuleType:
    return min(modules, key=lambda module: module.__name__.count("."))


def _files_of(modules: Iterable[ModuleType]) -> set[Path]:
    """The files of `modules`, and all others of their package."""
    folders: Iterable[str] = getattr(_package(modules), "__path__", ())
    return {*filter(None, map(_file, modules)), *chain(*map(_files_below, folders))}


def _files_below(folder: str) -> Iterator[Path]:
    with suppress(LowerdeckError):  # too many links, which a build that uses the package says
        yield from files_of_package(Path(folder))


def _state(modules: Iterable[ModuleType]) -> dict[str, str]:
    """What says of each file of a package which one it is: the digest of code, and a stamp of data, which may be large.

    The time stamps alone do not: they stay when a folder is moved to the place of another one, or a link to another
    file. A digest also stays where an editor writes the same again, and some modules can be imported only once.
    """
    is_code = (".py", *EXTENSION_SUFFIXES)
    return {str(file): (_digest if file.name.endswith(is_code) else _stamp)(file) for file in _files_of(modules)}


def _digest(file: Path) -> str:
    try:
        return FILES.digest(file)
    except OSError:  # one that may not be read cannot be imported either
        return ABSENT


def _stamp(file: Path) -> str:
    try:
        status = file.stat()
    except OSError:
        return ABSENT
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"


def _changed_s(modules: Iterable[ModuleType]) -> float:
    """When a file of a package, or a folder that it is in, was written, removed or put in its place last."""
    files = _files_of(modules)
    folders = {folder for file in files for folder in file.parents}
    return max(chain(map(_written_s, files), map(_moved_s, folders)), default=0)


def _written_s(file: Path) -> float:
    """When a file was written or put in its place; infinite if it was removed from its folder."""
    try:
        return placed_s(file)
    except OSError:
        return math.inf if file.parent.is_dir() else 0  # in an archive


def _moved_s(folder: Path) -> float:
    """When a folder or a link to one was put in its place: what is written in a folder changes both of its stamps."""
    try:
        status = folder.lstat()
    except OSError:
        return 0  # in an archive
    return status.st_ctime if folder.is_symlink() or status.st_ctime > status.st_mtime else 0


def _loaded_from_others(here: Path) -> dict[str, ModuleType]:
    """Modules of other workspaces that Python would take for those of `here`.

    That are those whose names are taken in `here`, such as `plugins`, and those in folders that plug-ins added: which
    folders those of `here` will add is not known yet.
    """
    own = _modules({path.stem for path in here.iterdir()})
    roots = {name: _root(name, module) for name, module in own.items()}
    others = {name for name, root in roots.items() if root not in (None, here) and (root / PARAMS).is_file()}
    entries = [Path(entry).resolve() for other in _ADDED.keys() - {here} for entry in chain(*_ADDED[other])]
    added = {folder for folder in entries if not is_installed(folder)}
    loaded = [(name, module) for name, module in list(sys.modules.items()) if added and "." not in name]
    others |= {name for name, module in loaded if _root(name, module) in added}
    return _modules({name.partition(".")[0] for name in others} - _NOT_OWN)


def _root(name: str, module: ModuleType) -> Path | None:
    """The folder of the top-level package of a module; None if the module has no file."""
    depth = name.count(".") + hasattr(module, "__path__")
    file = _file(module)
    return next(iter(file.resolve().parents[depth:]), None) if file else None


def _modules(packages: set[str]) -> dict[str, ModuleType]:
    """The imported modules of `packages`."""
    return {name: module for name, module in list(sys.modules.items()) if name.partition(".")[0] in packages}


def _file(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file) if file else None
