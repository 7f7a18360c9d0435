"""The user's modules in a process that builds more than once: in several workspaces, and while files are edited."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import chdir, contextmanager, suppress
from itertools import chain, takewhile
from pathlib import Path
from traceback import walk_tb
from types import ModuleType

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.fingerprints.closures import IMPORTS_BY_NAME, TOOLS, files_of_package
from lowerdeck.fingerprints.imports import imports_of
from lowerdeck.registry.components import is_installed
from lowerdeck.workspace.contents import PARAMS

_ADDED: dict[Path, tuple[Sequence[str], Sequence[str]]] = {}
"""What plug-ins of a workspace put on `sys.path`: they do so once, when they are imported, and may import later."""
_ENTERED: dict[Path, tuple[float, set[str]]] = {}
"""When a workspace was the current one last, and which loaded packages were outdated then."""
_CLOCK_S = 0.05
"""Most by which time stamps of files are behind the clock."""
_NOT_OWN = TOOLS | sys.stdlib_module_names | {"__main__"}


@contextmanager
def in_workspace(workspace: Path | str) -> Iterator[None]:
    """Make it the current folder, from which plugins/ is imported, too, as by the command.

    Modules of other workspaces, and the user's own where a file of theirs was changed, are imported again meanwhile.

    Raises:
        LowerdeckError: one of these failed when it was imported again.
    """
    found = list(sys.path)
    kept = [entry and _absolute(entry, Path.cwd()) for entry in found]
    with chdir(workspace):
        here = Path.cwd()
        hidden: dict[str, ModuleType] = {}
        for find in (_loaded_from_others, _outdated):
            hidden |= (modules := find(here))
            for name in modules:
                del sys.modules[name]
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
            for name in _modules({name.partition(".")[0] for name in hidden}):
                del sys.modules[name]
            sys.modules.update(hidden)
            _forget_relative_places()


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


def _outdated(here: Path) -> dict[str, ModuleType]:
    """Modules of the user's packages of which a file may have been changed since its import, and of those on top.

    Without the latter, they would keep what they have imported. `sys.modules` gets all of them back after the build, so
    they stay outdated.
    """
    import psutil

    since, known = _ENTERED.get(here) or (psutil.Process().create_time(), set())
    entered, packages = time.time(), _own_packages()
    outdated = {name for name, modules in packages.items() if name in known or _changed_s(modules) > since - _CLOCK_S}
    further = outdated
    while further:
        others = packages.keys() - outdated
        further = {name for name in others if not further.isdisjoint(_imported_by(packages[name], packages, here))}
        outdated |= further
    _ENTERED[here] = entered, outdated
    return _modules(outdated)


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


def _changed_s(modules: Sequence[ModuleType]) -> float:
    """When a file of `modules`, or another one of their package, was written or removed last; see `_written_s`."""
    package = min(modules, key=lambda module: module.__name__.count("."))
    folders: Iterable[str] = getattr(package, "__path__", ())
    files = chain(filter(None, map(_file, modules)), *map(_files_below, folders))
    return max(map(_written_s, files), default=0)


def _files_below(folder: str) -> Iterator[Path]:
    with suppress(LowerdeckError):  # too many links, which a build that uses the package says
        yield from files_of_package(Path(folder))


def _written_s(file: Path) -> float:
    """When a file was written or put in its place; infinite if it was removed from its folder."""
    try:
        status = file.stat() if file.exists() else file.lstat()  # a link to nothing
    except OSError:
        return math.inf if file.parent.is_dir() else 0  # in an archive
    return max(status.st_mtime, status.st_ctime)


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
