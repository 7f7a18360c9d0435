"""`lowerdeck add`: the files of a part of the user's own, which build as they are and are then edited."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowerdeck.artifacts.files import write_text
from lowerdeck.config.options import option_file, option_names
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.registry.components import did_you_mean
from lowerdeck.workspace import contents

KINDS = {
    "model": "model",
    "dataset": "dataset",
    "metric": "evaluation",
    "task": "task",
    "target": "target",
    "device": "device",
}
"""Group of conf/ in which a part of each kind becomes an option."""
PLUGINS = "plugins"
_CONF = Path("conf")
_STUBS = Path(__file__).with_name("stubs")


@dataclass(frozen=True, kw_only=True)
class Added:
    """A part that was added to the workspace."""

    files: tuple[str, ...]
    group: str
    """The group of params.yaml that chooses it."""
    needs_plugins: bool
    """Whether params.yaml has to open the package `plugins`."""


def add(kind: str, name: str, like: str | None = None) -> Added:
    """Write the files of a new part into the workspace in the current folder.

    Args:
        kind: One of `KINDS`.
        name: Name of the option and of the module; snake case.
        like: For a target, the option to begin with; its file is copied.

    Raises:
        LowerdeckError: `name` cannot be one, or is taken; nothing was written.
    """
    group = KINDS[kind]
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise LowerdeckError(
            f"{name!r} cannot be the name of a module; use small letters, digits and _, e.g. my_{kind}"
        )
    if name in option_names(group, _CONF):
        raise LowerdeckError(f"{option_file(group, name, _CONF)} exists already; choose another name")
    values = {"name": name, "class_name": "".join(part.capitalize() for part in name.split("_"))}
    texts = {f"tests/test_{name}.py": _render(kind, "test.py", values)}
    if kind == "target":
        texts |= {f"conf/target/{name}.yaml": _copied_target(name, like)}
    else:
        texts |= {
            f"{PLUGINS}/{name}.py": _render(kind, "plugin.py", values),
            f"conf/{group}/{name}.yaml": _render(kind, "option.yaml", values),
        }
    if blocked := contents.in_the_way(Path(), texts):
        raise LowerdeckError(f"{', '.join(blocked)} must be a folder, and nothing was written; move away what is there")
    if taken := [path for path in texts if contents.is_there(Path(path))]:
        raise LowerdeckError(f"{', '.join(taken)} would be overwritten, and nothing was written; choose another name")
    for path, text in texts.items():
        write_text(Path(path), text)
    return Added(files=tuple(sorted(texts)), group=group, needs_plugins=kind != "target")


def _copied_target(name: str, like: str | None) -> str:
    known = option_names("target", _CONF)
    if like is None:
        raise LowerdeckError(f"name the target to begin with: `lowerdeck add target {name} --like {known[0]}`")
    if like not in known:
        raise LowerdeckError(f"there is no target {like!r}; there are: {', '.join(known)}.{did_you_mean(like, known)}")
    text = option_file("target", like, _CONF).read_text(encoding="utf-8")
    return re.sub(r"^name:.*$", f"name: {name}", text, flags=re.MULTILINE)


def _render(kind: str, template: str, values: Mapping[str, Any]) -> str:
    import jinja2

    text = (_STUBS / kind / f"{template}.j2").read_text(encoding="utf-8")
    # The text is Python or YAML, in which nothing is escaped, and the name has been checked.
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)  # noqa: S701
    return environment.from_string(text).render(values)
