"""`lowerdeck completion`: commands, options, and names such as those in conf/ at the time when a shell asks."""

from __future__ import annotations

import argparse
import re
from typing import Any

from lowerdeck.cli.commands import HELP


def add(commands: Any) -> None:
    """Add the command to the parser of `lowerdeck`."""
    command = commands.add_parser("completion", help=HELP["completion"])
    command.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    command.set_defaults(run=_print)


def complete_with(argument: argparse.Action, names: str) -> None:
    """Let shells complete `argument` with what `lowerdeck NAMES` prints, one name a line."""
    function = f"_lowerdeck_{re.sub(r'[^a-z]+', '_', names)}"
    asked = f"lowerdeck {names} 2> /dev/null"
    in_bash = f'{function}() {{\n  compgen -W "$({asked})" -- "$1"\n}}'
    in_zsh = f'{function}() {{\n  compadd -- ${{(f)"$({asked})"}}\n}}'
    preamble = {"bash": in_bash, "zsh": in_zsh}
    vars(argument)["complete"] = {"bash": function, "zsh": function, "tcsh": f"`{asked}`", "preamble": preamble}


def _print(options: argparse.Namespace) -> None:
    import shtab

    from lowerdeck.cli.main import parser_of

    print(shtab.complete(parser_of(None), options.shell))
