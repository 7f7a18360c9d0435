"""Builds PyTorch models for edge processors, explains, compares and promotes the builds."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from lowerdeck.cli.commands import EXECUTE_MODELS, HELP, module_of
from lowerdeck.compat.terminal import OUTPUT, escaped_output
from lowerdeck.execution.frame_stack import with_long_frame_stack


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command with `arguments`, or with those of the process.

    Returns:
        Exit status: 0; 1 with a message after an error; 130 after Ctrl-C. An unknown command
        ends the process with the usage and status 2.
    """
    try:
        with escaped_output():
            return with_long_frame_stack(lambda: _main(arguments))
    except KeyboardInterrupt:
        return 130


def _main(arguments: Sequence[str] | None) -> int:
    owns_process = arguments is None
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = parser_of(next((text for text in arguments if not text.startswith("-")), ""))
    options, rest = parser.parse_known_args(arguments)
    if rest and (not hasattr(options, "overrides") or any(text.startswith("-") for text in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:  # argparse accepts positional arguments on one side of an option only
        options.overrides = [*options.overrides, *rest]
    if owns_process and (options.command in EXECUTE_MODELS or getattr(options, "tries", False)):  # explain --try
        from lowerdeck.execution.environment import fix_environment

        fix_environment()
    from pathlib import Path  # takes a tenth of the time of --help, which ends before

    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # contains plugins/, and the installed command does not search the current folder
    try:
        options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # `lowerdeck explain | head`
        _discard_output()
        return 1
    except Exception as error:  # the last frame of a command: whatever it is becomes a message
        from lowerdeck.execution.failures import failure_message

        if isinstance(error, OSError) and error.filename == OUTPUT:
            _discard_output()
        message = failure_message(error, options.command) + _altered_outputs(error)
        print(f"lowerdeck {options.command}: {message}", file=sys.stderr)
        return 1
    return 0


def _discard_output() -> None:
    """Let standard output be /dev/null: Python flushes it once more when the process ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _altered_outputs(error: Exception) -> str:
    """Of an unforeseen error, the files in build/ that may be its cause: they are not what stages wrote."""
    from lowerdeck.contracts.errors import LowerdeckError

    if isinstance(error, (LowerdeckError, OSError)):
        return ""
    from lowerdeck.execution.dvc_state import altered_outputs

    altered = ", ".join(altered_outputs())
    way_out = "if this is damage, delete that, and `dvc repro` makes it again"
    return altered and f". Not as `dvc repro` made them: {altered}; {way_out}"


class _Version(argparse.Action):
    """Looks for the version only when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest=argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from lowerdeck.workspace.contents import installed_version

        print(f"lowerdeck {installed_version()}")
        parser.exit()


def parser_of(command: str | None) -> argparse.ArgumentParser:
    """The parser with the arguments of one command; with those of all commands if `command` is None.

    Other commands have their names and summaries alone, so that their modules need not be imported.
    """
    parser = argparse.ArgumentParser(prog="lowerdeck", description=__doc__)
    parser.add_argument("--version", action=_Version, help="print the version of the installed package and exit")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    modules = [module_of(name) for name in HELP if command in (None, name)]
    for name, summary in HELP.items():
        if module_of(name) in modules and name not in commands.choices:
            importlib.import_module(module_of(name)).add(commands)
        elif name not in commands.choices:
            commands.add_parser(name, help=summary)
    return parser
