"""Files at the root of a workspace that hide modules of Python or of libraries: stages search that folder first.

Only the standard library is imported: the files that are looked for would hide others.
"""

from __future__ import annotations

import sys
from importlib.machinery import FrozenImporter
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
"""What this package imports and is installed with it; not those of extras, which may be absent."""


def check_root(workspace: Path) -> None:
    """Raise LowerdeckError if a file or package at the root of `workspace` hides a module of Python or of a library."""
    if hidden := [f"{entry} hides {what} from every stage" for entry, what in sorted(_hidden(workspace))]:
        which = "it" if len(hidden) == 1 else "them"
        raise LowerdeckError(f"{'; '.join(hidden)}; rename {which}, or move {which} into plugins/")


def _hidden(workspace: Path) -> Iterator[tuple[str, str]]:
    """Entries that hide a module, and what that is."""
    for path in workspace.iterdir():
        is_package = (path / "__init__.py").is_file()  # Python takes another folder only where it finds nothing else
        if is_package or (path.suffix == ".py" and path.is_file()):
            name, entry = path.name.removesuffix(".py"), f"{path.name}{'/' * is_package}"
            if _is_found_in_folders(name):
                yield entry, f"Python's own module `{name}`"
            elif name in LIBRARIES:
                yield entry, f"the library `{name}`"


def _is_found_in_folders(name: str) -> bool:
    """Whether `name` is a module of Python that is neither built into the interpreter nor frozen in it."""
    is_in_interpreter = name in sys.builtin_module_names or FrozenImporter.find_spec(name) is not None
    return name in sys.stdlib_module_names and not is_in_interpreter
