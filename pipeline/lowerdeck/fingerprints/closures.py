"""Code that an entry can reach: modules that it imports, directly or transitively, at the top or in functions.

Modules of plug points count only if the configuration chooses them: a build for one backend does not depend on the code
of another. A string that names a module, or a file next to the module that contains the string, counts as an import,
because child processes are started by such names; so does, in code of the user, a repository for `torch.hub` that a
string names. Where code of the user imports by names that it computes, all of the
user's code counts. That is what `plugins` lists, and what this imports, or import paths in options name, in the
workspace or on the import path.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import chdir, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowerdeck.fingerprints import bytecode
from lowerdeck.fingerprints.data import factory_module, unwatched
from lowerdeck.fingerprints.digests import UNREAD, digest, file_digest
from lowerdeck.fingerprints.imports import KEPT, Imports, imports_of
from lowerdeck.formats.folders import walk
from lowerdeck.registry.components import is_installed, module_of

PACKAGE = "lowerdeck"
STAGES = "stages"
_MOST_NAMED = 5
"""Files and folders outside of those that DVC watches that are named one by one."""
_HUB = (b"torch.hub", b"hub.load")
IMPORTS_BY_NAME = (b"importlib", b"pkgutil", b"__import__", b"hydra", b"pydoc", b"runpy", b"exec(", *_HUB)
"""Words in the source of a module that may import others by a name that it computes."""
_HUB_ENTRY = "hubconf.py"
"""What `torch.hub.load` executes of a local repository."""
_EXTENDS_PATH = (b"sys.path", b"from sys import", b"addsitedir")
"""Words in the source of a module that may make Python find others elsewhere."""
_NO_INPUT = re.compile(r"(?i)readme.*|.*\.(md|rst|ipynb|log)|events\.out\.tfevents\..*")
"""Names of files that no model is made from, though a package may well read them: notes, and records of training."""
_WORKSPACE = ("dvc.yaml", f"{STAGES}/compose.py")
"""Files that a workspace has, and a project of the user that DVC builds without Lowerdeck has not."""
_OF_WORKSPACE = frozenset(
    {
        *("build", "dvc.lock", "dvc_plots", "mlflow", "mlruns", "sweeps"),  # what builds write
        *("conf", "data", "docs", "dvc.yaml", "params.yaml", "pipeline", STAGES),  # their inputs, and records
    }
)
"""Files and folders of a workspace that are no part of a package around it: what of them matters counts by itself."""
TOOLS = frozenset(
    {PACKAGE, "torch", "torchao", "torchaudio", "torchvision", "executorch", "timm", "transformers", "numpy"}
)
"""Packages that are nobody's own code, even where they are used from a clone of their sources."""


@dataclass(frozen=True)
class PlugPoint:
    """A module that loads others as the configuration chooses."""

    module: str
    """A module that imports this one by name can reach the chosen ones."""
    section: str
    """Section of the configuration that chooses; import paths in it are followed too."""
    chosen: Callable[[Mapping[str, Any]], Iterable[str]]
    """Values of the section -> modules that they choose; those that do not exist are left out."""


def _device_module(kind: str | None) -> list[str]:
    """The module of a kind of device: one of the project's, or one of the user's by its full name."""
    return [] if kind is None else [module_of("lowerdeck.devices", kind)]


def _decoder_module(chosen: Any) -> list[str]:
    """The module of a decoder; none for tasks without one, and for those of plug-ins that mean something else by it."""
    name = chosen.get("name") if isinstance(chosen, Mapping) else None
    return [module_of("lowerdeck.tasks.decoders", name)] if isinstance(name, str) else []


PLUG_POINTS = (
    PlugPoint("lowerdeck.models", "model", lambda model: [module_of("lowerdeck.models", model["source"])]),
    PlugPoint("lowerdeck.datasets", "dataset", lambda dataset: [module_of("lowerdeck.datasets", dataset["source"])]),
    PlugPoint("lowerdeck.tasks", "task", lambda task: [module_of("lowerdeck.tasks", task["source"])]),
    PlugPoint("lowerdeck.tasks.decoders", "task", lambda task: _decoder_module(task["options"].get("decoder"))),
    PlugPoint(
        "lowerdeck.metrics",
        "evaluation",
        lambda chosen: [module_of("lowerdeck.metrics", name) for name in chosen["metrics"]],
    ),
    PlugPoint("lowerdeck.devices", "device", lambda device: _device_module(device["kind"])),
    PlugPoint("lowerdeck.backends", "target", lambda target: [f"lowerdeck.backends.{target['backend']}.backend"]),
    PlugPoint("lowerdeck.runtime.twins", "target", lambda target: [f"lowerdeck.backends.{target['backend']}.twin"]),
)


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Locations of modules' source files."""

    roots: dict[str, Path]
    """Top-level package -> the folder that contains it; extended by what code of the user turns out to import, and
    by what options turn out to name."""

    @classmethod
    def of_workspace(cls, workspace: Path, plugins: Sequence[str] = ()) -> Sources:
        """Sources of a workspace: its own copy of the package if it has one, else those of the running package.

        Args:
            workspace: Folder with stages/.
            plugins: Import prefixes of the user's own code, in the workspace or on the import path.
        """
        own = workspace / "pipeline"
        roots = {STAGES: workspace, PACKAGE: own if (own / PACKAGE).is_dir() else Path(__file__).parents[2]}
        for name in sorted({prefix.partition(".")[0] for prefix in plugins} - set(roots)):
            folder = _folder_of(name, workspace) if name.isidentifier() else None  # a path opens no modules
            if folder is not None:
                roots[name] = folder
        return cls(roots=roots)

    def own(self) -> dict[str, Path]:
        """The folder or file of each of the user's packages."""
        places = {name: root / name for name, root in sorted(self.roots.items()) if name not in (STAGES, PACKAGE)}
        return {name: place if place.is_dir() else place.with_suffix(".py") for name, place in places.items()}

    def add_imported(self, names: Iterable[tuple[str, str]]) -> None:
        """Add the packages of modules, each with a name in it, that code of the user imports, unless installed."""
        for module, name in names:
            top = module.partition(".")[0]
            if top in self.roots or top in TOOLS or top in sys.stdlib_module_names:
                continue
            # A folder of this name may be anything: `import wandb` finds that of its records.
            if (folder := _folder_of(top, self.roots[STAGES])) is not None:
                found = Sources(roots={top: folder})
                if found.file(module) or found.file(f"{module}.{name}"):
                    self.roots[top] = folder

    def file(self, module: str) -> Path | None:
        """Source file of `module`; None if it is not in one of these packages."""
        root = self.roots.get(module.partition(".")[0])
        if root is None:
            return None
        place = os.path.join(root, *module.split("."))  # noqa: PTH118  thousands of names
        files = (f"{place}/__init__.py", f"{place}.py")
        return next((Path(file) for file in files if os.path.isfile(file)), None)  # noqa: PTH113  as above

    def modules_below(self, package: str) -> list[str]:
        """All modules of `package`, including itself; only itself if it is a plain module."""
        file = self.file(package)
        folder = self.own().get(package) if file is None else file.parent  # plugins/ may lack __init__.py
        if folder is None or (file is not None and file.name != "__init__.py"):
            return [package]
        files = sorted(path for path in files_of_package(folder) if path.suffix == ".py")
        found = (path.relative_to(folder).with_suffix("") for path in files)
        return [".".join((package, *(part for part in path.parts if part != "__init__"))) for path in found]


@dataclass(frozen=True, kw_only=True)
class Node:
    """A module in the import graph."""

    file: Path
    reached: tuple[str, ...]
    """Modules that it reaches in one step; some names may be attributes instead."""
    data: Mapping[str, Path]
    """Of a package, by path below it: files other than Python, such as templates, in folders without modules.

    Without hidden files, copies that editors keep, and what workspaces hold for and of their builds.
    """


def closure(
    entries: Collection[str],
    config: Mapping[str, Any],
    sources: Sources,
    known: dict[str, Node | None] | None = None,
    options: Any = None,
) -> dict[str, Path]:
    """File by name of every module that `entries` can reach, and of their packages' data, sorted by name.

    Args:
        entries: Modules, e.g. `stages.export`.
        config: Resolved configuration as plain values; empty if no plug point is reached.
        sources: Locations of modules; those of the user's packages that turn out to be imported are added.
        known: Cache of nodes for the same configuration and sources; extended in place.
        options: Values whose import paths are entries, too.
    """
    known = {} if known is None else known
    while True:
        number = len(sources.roots)
        found = _reached_by((*entries, *_import_paths(options, sources)), config, sources, known)
        if len(sources.roots) == number:
            return dict(sorted(found.items()))
        known.clear()  # what was looked at before lacks modules of the packages that were found after it


def _reached_by(
    entries: Iterable[str], config: Mapping[str, Any], sources: Sources, known: dict[str, Node | None]
) -> dict[str, Path]:
    found: dict[str, Path] = {}
    waiting = list(entries)
    while waiting:
        module = waiting.pop()
        if module in found:
            continue
        if module not in known:
            known[module] = _node(module, config, sources)
        if (node := known[module]) is not None:
            found |= {module: node.file, **node.data}
            waiting += node.reached
    return found


def _closure_as_built(
    entries: Collection[str],
    config: Mapping[str, Any],
    sources: Sources,
    known: dict[str, Node | None] | None = None,
    options: Any = None,
) -> dict[str, Path]:
    """`closure`, with the import path that a build has: code of the user may extend it when it is imported.

    Packages around the modules that the configuration names are imported, as by whoever looks for these. The modules
    themselves, which may import torch, are only where code beyond those packages mentions the path.
    """
    known = {} if known is None else known
    values = (options, {name: values for name, values in config.items() if name != "build"})
    _import_named(values, sources, importlib.util.find_spec)
    found, own = closure(entries, config, sources, known, options), sources.own()
    late = {name: file for name, file in found.items() if file.suffix == ".py" and name not in sys.modules}
    sources_of_own = (file.read_bytes() for name, file in late.items() if name.partition(".")[0] in own)
    if any(word in source for source in sources_of_own for word in _EXTENDS_PATH):
        _import_named(values, sources, importlib.import_module)
        known.clear()
        found = closure(entries, config, sources, known, options)
    return found


def _import_named(values: Any, sources: Sources, imports: Callable[[str], object]) -> None:
    for module in dict.fromkeys(_import_paths(values, sources)):
        if module.partition(".")[0] in sources.own() and sources.file(module) is not None:
            # Whatever the user's code raises: whoever imports it for use reports that. A script may change the folder.
            with suppress(Exception), chdir("."):
                imports(module)


def code_digest(modules: Mapping[str, Path], digest_of: Callable[[Path], str] = file_digest) -> str:
    """SHA-256 over names and contents of modules, independent of their folders."""
    return digest([[name, digest_of(file)] for name, file in modules.items()])


def model_code(model: Mapping[str, Any], workspace: Path, plugins: Sequence[str]) -> str:
    """Digest of the user's own code that makes a model, beside the module of its factory; empty without any.

    Data of packages counts, as in the code of stages, except notes and records of training.

    Args:
        model: The section of the configuration as plain values.
        workspace: Folder with stages/.
        plugins: Import prefixes of the user's own code.
    """
    module, sources = factory_module(model), Sources.of_workspace(workspace, plugins)
    del sources.roots[PACKAGE]  # its code counts by stage
    found = _closure_as_built([module_of("lowerdeck.models", model["source"])], {}, sources, options=model)
    factory = None if module is None else sources.file(module)
    kept = {
        name: file
        for name, file in found.items()
        if file != factory and file.stat().st_size and (file.suffix == ".py" or not _NO_INPUT.fullmatch(file.name))
    }
    return code_digest(kept) if kept else ""


def stage_closures(config: Mapping[str, Any], sources: Sources) -> dict[str, dict[str, Path]]:
    """Closure of every entry in stages/ except `compose`, which depends on all code.

    Args:
        config: Resolved configuration as plain values.
        sources: Locations of modules.
    """
    names = {path.stem for path in (sources.roots[STAGES] / STAGES).glob("*.py")} - {"__init__", "compose"}
    entries = {name: f"{STAGES}.{name}" for name in sorted(names)}
    known: dict[str, Node | None] = {}
    _closure_as_built(entries.values(), config, sources, known)  # finds the packages that code of any stage imports
    return {name: closure([entry], config, sources, known) for name, entry in entries.items()}


def drop_outdated_bytecode(workspace: Path, plugins: Sequence[str]) -> None:
    """Remove outdated bytecode of the user's packages, before they are imported; arguments as for `Sources`."""
    for place in Sources.of_workspace(workspace, plugins).own().values():
        bytecode.drop_outdated(files_of_package(place) if place.is_dir() else [place])


def stage_code(config: Mapping[str, Any], workspace: Path) -> dict[str, str]:
    """Digest of all code that each stage can reach, the content of build/code.json; see `stage_code_and_files`."""
    return stage_code_and_files(config, workspace)[0]


def stage_code_and_files(
    config: Mapping[str, Any], workspace: Path
) -> tuple[dict[str, str], dict[str, Collection[Path]]]:
    """Digest of all code that each stage can reach, and the files of it.

    Stages will execute that code: outdated bytecode of the user's is removed.

    Args:
        config: Resolved configuration as plain values.
        workspace: Folder with stages/.
    """
    sources = Sources.of_workspace(workspace, config["build"]["plugins"])
    closures = stage_closures(config, sources)
    KEPT.write()
    modules = {name: file for found in closures.values() for name, file in found.items()}
    bytecode.drop_outdated(file for name, file in modules.items() if name.partition(".")[0] in sources.own())
    digest_of = functools.cache(file_digest)
    code = {name: code_digest(modules, digest_of) for name, modules in closures.items()}
    return code, {name: modules.values() for name, modules in closures.items()}


def unwatched_by(config: Mapping[str, Any], watched: Iterable[str], read: Collection[Path] = ()) -> list[str]:
    """Files, folders and packages of the user that a build depends on outside of the `watched` ones; see `unwatched`.

    Args:
        config: Resolved configuration as plain values.
        watched: Files and folders relative to the current folder, which is that of the workspace.
        read: See `unwatched`.
    """
    sources = Sources.of_workspace(Path.cwd(), config["build"]["plugins"])
    closures = stage_closures(config, sources) if sources.own() else {}  # adds what listed code imports
    own = sources.own()
    names = {name: file for modules in closures.values() for name, file in modules.items() if file not in own.values()}
    # DVC does not descend into links to folders.
    folders = {str(file.parent.resolve()) for name, file in names.items() if re.split("[./]", name)[0] in own}
    options = config["model"], config["dataset"], config["target"], [*map(str, own.values())], sorted(folders)
    return unwatched(options, watched, read)


def notes_on_unwatched(config: Mapping[str, Any], watched: Iterable[str], read: Collection[Path]) -> Iterator[str]:
    """What to say about each of `unwatched_by`, and about many of them."""
    outside = unwatched_by(config, watched, read)
    for path in outside[:_MOST_NAMED]:
        yield f"DVC does not notice changes of {path}; list it in dvc.yaml under the deps of compose"
    if len(outside) > _MOST_NAMED:
        yield f"nor does it notice those of {len(outside) - _MOST_NAMED} more files and folders with samples"


def _node(module: str, config: Mapping[str, Any], sources: Sources) -> Node | None:
    file = sources.file(module)
    if file is None:
        return None
    data = _data_of(module, file.parent) if file.name == "__init__.py" else {}
    if module.partition(".")[0] in sources.own():
        data |= _hub_repositories(module, file)
    return Node(file=file, reached=(*_parents(module), *_reached(module, file, config, sources)), data=data)


def _data_of(package: str, folder: Path) -> dict[str, Path]:
    found: list[Path] = []
    for path in folder.iterdir():
        if path.is_dir():
            found += files_of_package(path) if _is_part(path) and not any(path.glob("*.py")) else ()
        elif path.suffix != ".py" and _is_part(path):
            found.append(path)
    return {f"{package}/{file.relative_to(folder).as_posix()}": file for file in found if file.is_file()}


def _hub_repositories(module: str, file: Path) -> dict[str, Path]:
    """All files of local repositories for `torch.hub` that a module names, relative to the workspace."""
    source = file.read_bytes()
    if not any(word in source for word in _HUB):
        return {}
    folders = [Path(text) for text in _imports(source, "").strings if (Path(text) / _HUB_ENTRY).is_file()]
    files = {folder: files_of_package(folder) for folder in folders}
    return {f"{module}/{file}": file for found in files.values() for file in found if file.is_file()}


def files_of_package(folder: Path) -> Iterator[Path]:
    """Files in a folder of a package, and in all folders below it that are part of the package, links included.

    Raises:
        LowerdeckError: folders are linked in folders that are linked, and so on, too often.
    """
    for parent, names in walk(folder, lambda path: not _is_part(path)):
        yield from (path for path in (parent / name for name in names) if _is_part(path))


def _is_part(path: Path) -> bool:
    """Whether a file or folder in a package may be part of it."""
    return not UNREAD.fullmatch(path.name) and not (path.name in _OF_WORKSPACE and _is_workspace(path.parent))


def _is_workspace(path: Path) -> bool:
    """Whether this is the folder of a workspace: a build, which changes files there, is not to change its own code."""
    return all((path / name).is_file() for name in _WORKSPACE)


def _parents(module: str) -> Iterator[str]:
    """Packages around `module`: importing it executes their `__init__`, but does not use them as plug points."""
    parts = module.split(".")
    for length in range(1, len(parts)):
        yield ".".join(parts[:length])


def _reached(module: str, file: Path, config: Mapping[str, Any], sources: Sources) -> Iterator[str]:
    """Modules that one module imports or names, and those chosen through plug points among them."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    source = file.read_bytes()
    named = _imports(source, package)
    if module.partition(".")[0] in sources.own():
        sources.add_imported(named.names)
        if any(word in source for word in IMPORTS_BY_NAME):
            for name in sources.own():
                yield from sources.modules_below(name)
    # A name imported from a package is often a module, which is then reached instead of the package.
    modules = [f"{base}.{name}" if name and sources.file(f"{base}.{name}") else base for base, name in named.names]
    yield from modules
    for text in named.strings:
        if text.endswith(".py") and "/" not in text:
            yield f"{package}.{text.removesuffix('.py')}"
        elif text.partition(".")[0] == PACKAGE:
            yield from sources.modules_below(text)
    for point in PLUG_POINTS:
        if point.module in modules and point.section in config:
            yield from point.chosen(config[point.section])
            yield from _import_paths(config[point.section], sources)


def _imports(source: bytes, package: str) -> Imports:
    """Imports of `source`; none of what Python cannot read either, which whoever imports it reports."""
    try:
        return imports_of(source, package)
    except (SyntaxError, ValueError):
        return Imports(names=(), strings=())


def _import_paths(value: Any, sources: Sources) -> Iterator[str]:
    """Modules of import paths, `package.module:attribute`, in `value`, whose packages are added to `sources`.

    Of packages that are there already, a dot may stand for the colon.
    """
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from _import_paths(part, sources)
    elif isinstance(value, str):
        module, colon, attribute = value.partition(":")
        names = module.split(".")
        if ":" in attribute or not all(name.isidentifier() for name in names):
            return
        if colon:
            sources.add_imported([(module, attribute)])
            yield module
        elif names[0] in sources.own():
            yield from (*_parents(module), module)


def _folder_of(package: str, workspace: Path) -> Path | None:
    """The folder that contains the top-level `package`; None if it is installed or cannot be found."""
    with suppress(OSError):  # a longer name than files can have
        if (workspace / package).is_dir() or (workspace / f"{package}.py").is_file():
            return workspace
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a loaded module without a spec, e.g. __main__
        return None
    if spec is None:
        return None
    if spec.origin is None:  # a folder without __init__.py
        origins = [Path(place, "__init__.py") for place in spec.submodule_search_locations or ()]
    else:
        origins = [Path(spec.origin)]
    for origin in origins:
        if origin.suffix == ".py" and not is_installed(origin):
            return origin.parents[1] if origin.name == "__init__.py" else origin.parent
    return None
