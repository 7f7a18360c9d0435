"""The modules of the model that nodes come from, and globs that choose modules.

torch.export records path and class of these modules in `nn_module_stack` of every node, so neither torch nor the model
is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.registry import components

if TYPE_CHECKING:
    import torch

_REPEATED_CALL = re.compile(r"@\d+(?=\.|$)")
"""Suffix that torch adds to the path of a module that is called again, e.g. `layer@1`."""


def modules_of(node: torch.fx.Node) -> dict[str, str]:
    """Path -> class of the modules that `node` was traced in, outermost first, without the model itself.

    Containers that are never called (`blocks` of `blocks.0.conv`) are included, with the class "".
    """
    classes: dict[str, str] = {}
    for path, kind in (node.meta.get("nn_module_stack") or {}).values():
        path = _REPEATED_CALL.sub("", path.removeprefix("L['self']").removeprefix("."))
        classes[path] = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
    found: dict[str, str] = {}
    for path in classes:
        found |= with_outer_modules(path, classes)
    return found


def module_path(node: torch.fx.Node) -> str:
    """Path of the module that `node` comes from, e.g. `features.0.conv`; empty where unknown.

    The outer levels of the stack are ignored, because exporting a quantized program again hides them.
    """
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values() if path]
    return str(paths[-1]) if paths else ""


def with_outer_modules(path: str, classes: Mapping[str, str]) -> dict[str, str]:
    """Path -> class of the module at `path` and the modules around it, outermost first, without the model itself.

    Args:
        path: E.g. `layer3.0.conv1`; "" is the model.
        classes: Path -> class of modules; modules missing here have the class "".
    """
    parts = path.split(".") if path else []
    outer = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    return {module: classes.get(module, "") for module in outer}


def known_modules(graph: torch.fx.Graph) -> dict[str, str]:
    """Path -> class of all modules that the operators of `graph` were traced in."""
    known: dict[str, str] = {}
    for node in graph.nodes:
        if node.op == "call_function":
            known.update(modules_of(node))
    return known


def matches(modules: Mapping[str, str], globs: Sequence[str] = (), classes: Sequence[str] = ()) -> bool:
    """Whether one of `modules` matches one of `globs` or `classes`.

    Args:
        modules: Result of `modules_of` for a node.
        globs: Patterns of paths, e.g. `layer3` or `layer3.*`; `*` also matches dots.
        classes: Names of classes with any prefix of their import path: `torch.nn.Linear` and `Linear` both match
            `torch.nn.modules.linear.Linear`.
    """
    return any(fnmatchcase(path, glob) for path in modules for glob in globs) or any(
        _is_class(kind, wanted) for kind in modules.values() for wanted in classes
    )


def check_modules_known(
    modules: Mapping[str, str], key: str, globs: Iterable[str] = (), classes: Iterable[str] = ()
) -> None:
    """Raise ConfigurationError for a glob or class that matches no module; the message suggests similar ones.

    Args:
        modules: Result of `known_modules` for the program.
        key: Configuration key of the patterns, for the message.
        globs: Patterns of paths.
        classes: Names of classes.
    """
    for glob in globs:
        if not matches(modules, globs=[glob]):
            raise ConfigurationError(_unknown(key, glob, "path", modules))
    for name in classes:
        if not matches(modules, classes=[name]):
            raise ConfigurationError(_unknown(key, name, "class", {kind for kind in modules.values() if kind}))


def _is_class(kind: str, wanted: str) -> bool:
    package, _, name = wanted.rpartition(".")
    return kind.rpartition(".")[2] == name and (kind == wanted or kind.startswith(f"{package}." if package else ""))


def _unknown(key: str, pattern: str, what: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = components.did_you_mean(pattern.replace("*", ""), names, cutoff=0.5)
    listed = "" if near else f" There are: {', '.join(names[:12])}{', ...' if len(names) > 12 else ''}"
    return f"{key}: no module of the model has a {what} like {pattern!r}.{near}{listed}"
