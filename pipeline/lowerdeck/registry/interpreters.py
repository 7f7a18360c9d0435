"""Paths of interpreters and folders that configuration names and params.yaml opens."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def expanded(path: str) -> Path:
    """`path` with `~` expanded.

    Links are not resolved: the interpreter of a virtual environment is a link that finds its environment by its path.
    """
    return Path(os.path.normpath(Path(path).expanduser()))


def _is_absolute(path: str) -> bool:
    """Whether `path` means the same from every folder; a relative one would run what a clone brings along."""
    return path.startswith("~") or Path(path).is_absolute()


def interpreter_problem(python: str, plugins: Sequence[str]) -> str | None:
    """Return why `python` cannot or may not be started; None where no reason is found."""
    if not _is_absolute(python):
        return f"{python} is relative; write the interpreter's path from / or ~"
    path = expanded(python)
    if path.is_dir():
        return f"{path} is a folder; name the interpreter in it, {Path(python) / 'bin' / 'python'}"
    if not path.is_file():
        return f"there is no file {path}; name the interpreter of the environment that has the converter"
    if not os.access(path, os.X_OK):
        return f"{path} is not executable for you"
    return None if _path_is_open(python, plugins) else not_open("starts this program", python, plugins)


def folder_problem(folder: str, plugins: Sequence[str]) -> str | None:
    """Return why modules cannot or may not be imported from `folder`; None where no reason is found."""
    if not _is_absolute(folder):
        return f"{folder} is relative; write it from / or ~"
    if not expanded(folder).is_dir():
        return f"there is no folder {expanded(folder)}"
    return None if _path_is_open(folder, plugins) else not_open("imports code from there", folder, plugins)


def not_open(what: str, name: str, plugins: Sequence[str]) -> str:
    """Say that `name`, which `what`, has to be opened, and how."""
    line = f"plugins: [{', '.join([*plugins, name])}]"
    return f"{what}, which runs any code. If you trust it, let params.yaml say `{line}`"


def _path_is_open(path: str, plugins: Sequence[str]) -> bool:
    opened = [expanded(plugin) for plugin in plugins if "/" in plugin]
    return any(expanded(path).is_relative_to(folder) for folder in opened)
