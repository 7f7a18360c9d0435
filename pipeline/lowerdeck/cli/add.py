"""`lowerdeck add`: a model, dataset, metric, task, target or device of the user's own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lowerdeck.cli.commands import HELP
from lowerdeck.cli.completion import complete_with

PARAMS = Path("params.yaml")


def add(commands: Any) -> None:
    """Add the command to the parser of `lowerdeck`."""
    from lowerdeck.workspace.stubs import KINDS

    command = commands.add_parser("add", help=HELP["add"])
    command.description = (
        "Write a new part: its module in plugins/, its option in conf/ and its test in tests/. It builds as it is; "
        "then edit it."
    )
    command.add_argument("kind", choices=sorted(KINDS), metavar="KIND", help=", ".join(sorted(KINDS)))
    command.add_argument("name", metavar="NAME", help="of the option and of the module, e.g. my_net")
    like = command.add_argument("--like", metavar="OPTION", help="for a target: the option to begin with")
    complete_with(like, "conf --names target")
    command.add_argument("--use", action="store_true", help="choose it in params.yaml, too")
    command.set_defaults(run=_add)


def _add(options: argparse.Namespace) -> None:
    from lowerdeck.artifacts.files import write_text
    from lowerdeck.config.choices import read_params
    from lowerdeck.config.params import with_values
    from lowerdeck.workspace import stubs

    params = read_params(PARAMS)
    added = stubs.add(options.kind, options.name, options.like)
    print(f"add: {', '.join(added.files)}")
    values: dict[str, Any] = {added.group: options.name}
    opened = params.get("plugins") or []
    if added.needs_plugins and stubs.PLUGINS not in opened:
        values["plugins"] = [*opened, stubs.PLUGINS]
    if options.use:
        write_text(PARAMS, with_values(PARAMS, values))
        print(f"add: {PARAMS} chooses it; `lowerdeck repro` builds it")
        return
    lines = "".join(f"\n    {key}: {_yaml(value)}" for key, value in values.items())
    print(f"\nTo build it, let {PARAMS} say{lines}\n\nand run `lowerdeck repro`.")


def _yaml(value: Any) -> str:
    return f"[{', '.join(value)}]" if isinstance(value, list) else str(value)
