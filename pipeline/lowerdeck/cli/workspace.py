"""`lowerdeck init` and `lowerdeck upgrade`: workspaces in users' own repositories."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lowerdeck.cli.commands import HELP
from lowerdeck.cli.completion import complete_with


def add(commands: Any) -> None:
    """Add the commands to the parser of `lowerdeck`."""
    init = commands.add_parser("init", help=HELP["init"])
    init.description = (
        "Make a workspace: params.yaml, dvc.yaml, conf/, stages/, data/ and plugins/, with git and DVC where they are "
        "missing. It builds at once: `lowerdeck repro`. Files that are there stay; if one is in the way, nothing is "
        "written."
    )
    init.add_argument("folder", type=Path, nargs="?", default=Path(), metavar="DIR", help="default: the current one")
    example = init.add_argument(
        "--from",
        dest="example",
        default="pictures",
        metavar="EXAMPLE",
        help="what to build first (default: %(default)s)",
    )
    complete_with(example, "init --list | cut -d' ' -f1")
    init.add_argument("--list", action="store_true", help="list the examples instead")
    init.set_defaults(run=_init)
    upgrade = commands.add_parser("upgrade", help=HELP["upgrade"])
    upgrade.description = (
        "Bring the files that `lowerdeck init` wrote up to date and the configuration to today's keys. Files that you "
        "edited stay as they are; where the package's have changed too, the differences are shown."
    )
    upgrade.add_argument("--replace-edited", action="store_true", help="replace those by the package's as well")
    upgrade.set_defaults(run=_upgrade)


def _init(options: argparse.Namespace) -> None:
    from lowerdeck.workspace import creation

    if options.list:
        known = creation.examples()
        width = max(len(example.name) for example in known)
        print("\n".join(f"{example.name:{width}}  {example.description}" for example in known))
        return
    written = creation.create(options.folder, options.example)
    folders = sorted({name.partition("/")[0] + "/" for name in written if "/" in name})
    files = [name for name in written if "/" not in name]
    print(f"init: {options.folder.absolute()}: {', '.join([*folders, *files])}")
    print("\nNext:\n")
    if options.folder.absolute() != Path.cwd():
        print(f"    cd {options.folder}")
    print("    lowerdeck repro        # builds what params.yaml says, and shows the metrics with `lowerdeck report`")


def _upgrade(options: argparse.Namespace) -> None:
    from lowerdeck.workspace.upgrade import upgrade

    changes = upgrade(Path(), replace_edited=options.replace_edited)
    for change in changes:
        if change.action != "edited":
            print(f"{change.action}: {change.path}")
            print("".join(f"    {line}\n" for line in change.lines), end="")
    for change in changes:
        if change.action == "edited":
            print(f"\nedited here and changed in the package: {change.path} (kept; --replace-edited replaces it)")
            print("\n".join(change.lines))
    if not changes:
        print("upgrade: everything is up to date")
    print("\n`lowerdeck repro` now runs the stages whose code or configuration has changed." if changes else "")
