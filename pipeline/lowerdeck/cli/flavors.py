"""`lowerdeck flavors`: every option of conf/flavor, whether its converter is usable here, and environments for more."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowerdeck.cli.commands import HELP

if TYPE_CHECKING:
    from lowerdeck.config.flavor_status import Status

CONF = Path("conf")
PARAMS = Path("params.yaml")


def add(commands: Any) -> None:
    """Add the command to the parser of `lowerdeck`."""
    command = commands.add_parser("flavors", help=HELP["flavors"])
    command.add_argument("--json", action="store_true", help="print them as JSON")
    command.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="time limit for querying one of them (default: %(default)g)",
    )
    command.set_defaults(run=_flavors)
    actions = command.add_subparsers(metavar="ACTION")
    added = actions.add_parser("add", help="install a release in an environment of its own, with its option")
    added.description = (
        "Make a virtual environment with one release of a converter, and its option in conf/flavor, so that builds "
        "with several releases stand side by side."
    )
    added.add_argument("release", metavar="CONVERTER==VERSION", help="e.g. vela==5.0.0")
    added.add_argument("--index-url", metavar="URL", help="package index (default: pip's own)")
    added.add_argument(
        "--folder", metavar="FOLDER", help="of all environments (default: ~/.local/share/lowerdeck/flavors)"
    )
    added.add_argument("--use", action="store_true", help="choose and open it in params.yaml, too")
    added.set_defaults(run=_add)


def _add(options: argparse.Namespace) -> None:
    from lowerdeck import backends
    from lowerdeck.artifacts.files import write_text
    from lowerdeck.config.choices import read_params
    from lowerdeck.config.params import with_values
    from lowerdeck.contracts.backends import Flavor
    from lowerdeck.workspace import flavor_environments as environments

    wanted = environments.release(options.release)
    opened = options.folder or environments.ENVIRONMENTS
    parent = Path(opened).expanduser().absolute()
    python = environments.install(wanted, parent / f"{wanted.converter}-{wanted.version}", options.index_url, print)
    written = str(python) if options.folder else f"{opened}/{python.relative_to(parent)}"
    flavor = Flavor(name=wanted.option, converter=wanted.converter, options={"python": written})
    found = backends.probe(wanted.backend, flavor).converter.require_version(wanted.version)
    path = environments.write_option(wanted, written, CONF)
    print(f"{path}: {found.name} {found.version}")
    plugins = read_params(PARAMS).get("plugins") or []
    values: dict[str, Any] = {"flavor": wanted.option}
    if opened not in plugins:
        values["plugins"] = [*plugins, opened]
    if options.use:
        write_text(PARAMS, with_values(PARAMS, values))
        print(f"{PARAMS} chooses it; `lowerdeck repro` builds with it")
        return
    lines = "".join(f"\n    {key}: {_yaml(value)}" for key, value in values.items())
    print(f"\nTo build with it, let {PARAMS} say{lines}")


def _yaml(value: Any) -> str:
    return f"[{', '.join(value)}]" if isinstance(value, list) else str(value)


def _flavors(options: argparse.Namespace) -> None:
    from lowerdeck.config.flavor_status import statuses
    from lowerdeck.config.yaml_text import read_mapping

    found = statuses(CONF, read_mapping(PARAMS) if PARAMS.is_file() else {}, options.timeout)
    if options.json:
        print(json.dumps([asdict(status) for status in found], indent=2))
        return
    from lowerdeck.compat.terminal import terminal_console

    console = terminal_console()
    console.print(_table(found))
    for status in found:
        for line in _notes(status):
            console.print(f"\n{line}", markup=False, highlight=False, soft_wrap=True)


def _table(found: list[Status]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("flavor", "usable", "version", "targets"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("flavor", "version"))
    for status in found:
        table.add_row(
            f"{status.option} *" if status.chosen else status.option,
            "yes" if status.installed else "no",
            status.version or "",
            _listed(status.targets) if status.installed else "",
        )
    return table


def _listed(targets: list[str] | None) -> str:
    if targets is None:
        return "cannot list them"
    return ", ".join(targets) if len(targets) <= 3 else f"{', '.join(targets[:2])} and {len(targets) - 2} more"


def _notes(status: Status) -> Iterator[str]:
    """Notes that do not fit into the table."""
    if status.problem:
        yield f"{status.option}: {status.problem}"
    if status.host_only:
        yield f"{status.option}: its programs run on the host only, not on the NPU"
    if status.missing_features:
        yield f"{status.option} lacks {', '.join(status.missing_features)}"
