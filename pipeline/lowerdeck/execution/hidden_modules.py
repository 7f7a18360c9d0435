"""Files at the root of a workspace that hide modules, or that its own folders hide: stages search that folder first.

Only the standard library is imported: the files that are looked for would hide others.
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from importlib.machinery import FrozenImporter, PathFinder
from typing import TYPE_CHECKING

from lowerdeck.contracts.errors import LowerdeckError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIBRARIES = frozenset(
    {
        *("PIL", "dvc", "executorch", "filelock", "flatbuffers", "fsspec", "hydra", "jinja2", "markupsafe"),
        *("matplotlib", "mlflow", "networkx", "numpy", "omegaconf", "packaging", "psutil", "pyarrow", "pydantic"),
        *("requests", "rich", "ruamel", "safetensors", "scipy", "shtab", "sqlalchemy", "sympy", "torch", "torchao"),
        *("torchvision", "tqdm", "typing_extensions", "vl_convert", "yaml"),
    }
)
"""What this package imports and is installed with it."""

EXTRAS = (
    *("ai_edge_litert", "serial", "soundfile", "timm", "torchaudio", "tosa_reference_model", "transformers"),
    "ethosu",  # imported by ExecuTorch
)
"""What this package imports of its extras, which may be absent: a file then hides nothing."""

_OF_NOBODY = ("tests", "test", "docs", "examples", "scripts", "validate", "isympy", "pylab")
"""What distributions install by mistake, for old programs or for people; no library imports it."""


FOLDERS = ("data", "plugins", "stages")
"""Folders of every workspace that Python searches for modules."""


def check_root(workspace: Path) -> None:
    """Raise LowerdeckError if a file or package at the root of `workspace` hides a module of Python or of a library.

    Or if one is to be imported by the name of a folder of the workspace.
    """
    for name in FOLDERS:
        folder = workspace / name
        is_package = (folder / "__init__.py").is_file()
        if (is_package or any(folder.glob("*.py"))) and (workspace / f"{name}.py").is_file():
            raise LowerdeckError(f"{beside_folder(name, is_package)}; rename {name}.py")
    if hidden := [f"{entry} hides {what} from every stage" for entry, what in sorted(_hidden(workspace))]:
        which = "it" if len(hidden) == 1 else "them"
        raise LowerdeckError(f"{'; '.join(hidden)}; rename {which}, or move {which} into plugins/")


def beside_folder(name: str, is_package: bool) -> str:
    """What Python does with `name`.py beside a folder `name`/."""
    used, other = (f"the package {name}/", f"{name}.py") if is_package else (f"{name}.py", f"the folder {name}/")
    return f"of {name}.py and {name}/ in a workspace, `import {name}` finds {used} and never {other}"


def _hidden(workspace: Path) -> list[tuple[str, str]]:
    """Entries that hide a module, and what that is."""
    entries = dict(_modules(workspace))
    found = [(entry, f"Python's own module `{name}`") for entry, name in entries.items() if _is_found_in_folders(name)]
    found += [(entry, f"the library `{name}`") for entry, name in entries.items() if name in LIBRARIES]
    if found:
        return found  # before more of Python is imported, which these may hide
    return [(entry, f"the library `{name}`") for entry, name in entries.items() if _is_of_requirements(name)]


def _modules(workspace: Path) -> Iterator[tuple[str, str]]:
    """Entries at the root that Python takes for modules, and their names."""
    for path in workspace.iterdir():
        is_package = (path / "__init__.py").is_file()  # Python takes another folder only where it finds nothing else
        if is_package or (path.suffix == ".py" and path.is_file()):
            yield f"{path.name}{'/' * is_package}", path.name.removesuffix(".py")


def _is_of_requirements(name: str) -> bool:
    """Whether `name` is installed by what this package or an extra requires, directly or not: libraries import it."""
    folders = [folder for folder in sys.path if folder.endswith(("site-packages", "dist-packages"))]
    if name in _OF_NOBODY or PathFinder.find_spec(name, folders) is None:
        return False
    from importlib.metadata import packages_distributions  # a second, which few workspaces pay

    owners = packages_distributions()
    # Not all that the extra of developers installs, such as pytest, which no stage imports.
    of_extras = {_normalized(owner) for module in EXTRAS for owner in owners.get(module, ())}
    return not _requirements(of_extras).isdisjoint(map(_normalized, owners.get(name, ())))


def _requirements(of_extras: set[str]) -> set[str]:
    """Names of the distributions that this one requires without extras, of these, and of all that they require."""
    from importlib.metadata import PackageNotFoundError, requires

    found = set(of_extras)
    waiting = ["lowerdeck", *of_extras]
    while waiting:
        with suppress(PackageNotFoundError):
            for requirement in requires(waiting.pop()) or ():
                name = _normalized(re.split(r"[^\w.-]", requirement, maxsplit=1)[0])
                if "extra ==" not in requirement and name not in found:
                    found.add(name)
                    waiting.append(name)
    return found


def _normalized(name: str) -> str:
    """The name of a distribution as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_found_in_folders(name: str) -> bool:
    """Whether `name` is a module of Python that is neither built into the interpreter nor frozen in it."""
    is_in_interpreter = name in sys.builtin_module_names or FrozenImporter.find_spec(name) is not None
    return name in sys.stdlib_module_names and not is_in_interpreter
