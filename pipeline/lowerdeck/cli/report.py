"""`lowerdeck report`: the metrics of the build in build/, in the terminal and on a page."""

from __future__ import annotations

import argparse
from typing import Any

from lowerdeck.cli.commands import HELP


def add(commands: Any) -> None:
    """Add the command to the parser of `lowerdeck`."""
    report = commands.add_parser("report", help=HELP["report"])
    report.add_argument("--md", action="store_true", help="print Markdown, for a comment on a pull request")
    report.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> None:
    from lowerdeck.artifacts import paths
    from lowerdeck.artifacts.files import write_text
    from lowerdeck.artifacts.measurements import read_profile
    from lowerdeck.compat.terminal import terminal_console
    from lowerdeck.pages import report
    from lowerdeck.pages.explanation import export
    from lowerdeck.report import terminal
    from lowerdeck.report.build import is_younger, read_build
    from lowerdeck.report.markdown import as_markdown

    build = read_build()
    write_text(paths.REPORT, report.render(build, has_comparison=is_younger(paths.COMPARISON, paths.METRICS)))
    tried, has_bundle = export.tried_before(build.plan, build.config), build.lineage is not None
    pages = export.render(build.plan, build.config, tried, read_profile(), build.run_page, has_bundle=has_bundle)
    for name, text in pages.items():
        write_text(paths.BUILD / name, text)
    if options.md:
        print(as_markdown(build), end="")
    else:
        terminal.print_table(build, terminal_console())
