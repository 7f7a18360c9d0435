"""The short table at the end of a build."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lowerdeck.artifacts import paths
from lowerdeck.report import summary
from lowerdeck.report.build import Build


def print_table(build: Build, console: Console) -> None:
    """Print the metrics of `build`, the caveat of its converter, what is lost, and where to look next.

    Nothing is interpreted as markup, and no information depends on colour: a log file contains the same text.
    """
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for what, value in summary.rows(build.config, build.metrics, build.manifest):
        table.add_row(Text(what), Text(value))
    console.print()
    console.print(table)
    for note in (
        build.manifest["converter"]["caveat"],
        "\n  ".join(build.loss.lines) if build.loss else None,
        "not recorded yet: `dvc repro` runs the stage track" if build.lineage is None else None,
    ):
        if note:
            console.print(Text(note, style="yellow"), soft_wrap=True)
    console.print()
    for what, where in (
        ("the whole report:", str(paths.REPORT)),
        ("for firmware:", str(paths.FIRMWARE_ZIP)),
        ("what is not delegated:", "lowerdeck explain"),
        ("all builds compared:", "lowerdeck compare, lowerdeck ui"),
        ("against the last commit:", "dvc metrics diff"),
    ):
        console.print(Text(f"{what:<26}{where}"), soft_wrap=True)
