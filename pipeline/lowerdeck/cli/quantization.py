"""`lowerdeck quantization`: the quantized tensors of the build in build/, worst first."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from lowerdeck.cli.commands import HELP
from lowerdeck.cli.sensitivity import positive


def add(commands: Any) -> None:
    """Add the command to the parser of `lowerdeck`."""
    text = HELP["quantization"]
    parser: argparse.ArgumentParser = commands.add_parser("quantization", help=text, description=f"Print {text}.")
    parser.add_argument("--top", type=positive, metavar="N", help="only the N worst")
    parser.add_argument("--json", action="store_true", help="print JSON, with all channels")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Print the table or the JSON."""
    from rich.table import Table
    from rich.text import Text

    from lowerdeck.artifacts import paths
    from lowerdeck.artifacts.baseline import read_layers
    from lowerdeck.artifacts.quantization_report import read_quantization_loss, read_quantization_report
    from lowerdeck.compat.terminal import terminal_console
    from lowerdeck.report.build import check_is_of_metrics, is_younger
    from lowerdeck.report.quantization import HEADER, tensor_rows

    if is_younger(paths.METRICS, paths.MANIFEST) and is_younger(paths.METRICS, paths.QUANTIZATION_REPORT):
        check_is_of_metrics()  # what is younger than the metrics was made since, by a stage of its own
    layers = read_layers(paths.LAYERS) if paths.LAYERS.is_file() else []
    rows = tensor_rows(read_quantization_report(), layers)[: options.top]
    if options.json:
        print(json.dumps([dataclasses.asdict(row.tensor) | {"sqnr_db": row.sqnr_db} for row in rows], indent=2))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in HEADER:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row.cells()))
    console = terminal_console()
    console.print(table if rows else "the program is not quantized")
    if (loss := read_quantization_loss()) is not None:
        console.print(Text("\n  ".join(loss.lines), style="yellow"), soft_wrap=True)
    if rows and not layers:
        console.print("SQNR of activations: not measured yet; `dvc repro baseline` measures it", style="yellow")
