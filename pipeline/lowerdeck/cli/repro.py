"""`lowerdeck repro`: `dvc repro` with stages side by side, after repairing what a killed DVC left behind."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from lowerdeck.cli.commands import HELP
from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError


def add(commands: Any) -> None:
    """Add the command to the parser of `lowerdeck`."""
    command = commands.add_parser(
        "repro",
        help=HELP["repro"],
        # All arguments are DVC's, so that none of them is an option here.
        prefix_chars="\0",
        add_help=False,
    )
    command.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="as for `dvc repro`")
    command.set_defaults(run=_repro)


def _check_bounds(params: Path) -> None:
    """DVC reads the file before the stage compose does, and libyaml crashes on what is nested without end.

    Raises:
        ConfigurationError: it is nested too deeply or too large, or has conflict markers.
    """
    from lowerdeck.config.yaml_text import mapping_problem
    from lowerdeck.formats.regular_files import check_regular

    with suppress(OSError, UnicodeDecodeError):  # DVC says why it cannot read it
        text = check_regular(params).read_text(encoding="utf-8")
        if any(line.startswith("<<<<<<< ") for line in text.splitlines()):
            raise ConfigurationError(
                f"{params} has the conflict markers of a merge; edit it, or choose a side by `git checkout --ours "
                f"{params}` or `--theirs`, and run `lowerdeck repro` again"
            )
        if problem := mapping_problem(text):
            raise ConfigurationError(f"{params} {problem}")


def _check_dependencies(pipeline: Path) -> None:
    """DVC reads all that stages depend on to hash it, and waits for ever for a pipe that nobody writes to.

    Raises:
        LowerdeckError: a dependency is, or contains, what cannot be read to its end; or conf/ is missing, which DVC
            takes for a fault of the operating system.
    """
    from lowerdeck.config.yaml_text import read_mapping
    from lowerdeck.formats.regular_files import check_tree

    stages: Any = {}
    with suppress(ConfigurationError):  # DVC says what is wrong with it
        stages = read_mapping(pipeline).get("stages")
    declared = [stage.get("deps") for stage in stages.values()] if isinstance(stages, dict) else []
    for dependency in dict.fromkeys(each for deps in declared for each in deps or () if isinstance(each, str)):
        check_tree(Path(dependency))
        if dependency == "conf" and not Path(dependency).exists():
            raise LowerdeckError(
                "conf/, the configuration, is missing; `git checkout conf` brings it back, or copy it from a new "
                "workspace (`lowerdeck init DIR`)"
            )


def _repro(options: argparse.Namespace) -> NoReturn:
    """Repair the project in the current folder, and become `dvc repro`."""
    from lowerdeck.execution import dvc_state
    from lowerdeck.workspace import contents

    if contents.RECORD.is_file() and contents.link_code(Path()):
        print("repro: pipeline/lowerdeck is the installed package now")
    _check_bounds(Path("params.yaml"))
    _check_dependencies(Path("dvc.yaml"))
    for line in (*dvc_state.repair(), *dvc_state.remove_dangling_links()):
        print(f"repro: {line}")
    dvc_state.keep_locks()
    sys.stdout.flush()
    sys.stderr.flush()
    command, environment = dvc_state.repro_command(*options.arguments)
    os.execve(command[0], command, environment)  # noqa: S606
