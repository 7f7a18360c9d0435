"""`lowerdeck run`: executes a .pte on this host or a device and writes its outputs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lowerdeck.cli.commands import HELP
from lowerdeck.cli.completion import complete_with
from lowerdeck.contracts.errors import LowerdeckError


def add(commands: Any) -> None:
    """Add the command to the parser of `lowerdeck`."""
    run: argparse.ArgumentParser = commands.add_parser("run", help=HELP["run"])
    run.description = "Execute a .pte on this host. Without --inputs, a program that has inputs is only described."
    run.add_argument("program", type=Path, metavar="PROGRAM.pte")
    run.add_argument(
        "--inputs",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help=".npy or raw .bin files, one per input; .npz files, one per run; images or a folder of them, one per run "
        "(arrays are passed unchanged; images are converted to the integers that the manifest describes)",
    )
    run.add_argument("--output", type=Path, metavar="DIR", help="folder for output_0.npy, output_0.bin, ...")
    device = run.add_argument(
        "--on", metavar="DEVICE", help="execute it on this device (`lowerdeck devices` lists them)"
    )
    complete_with(device, "conf --names device")
    run.add_argument("--method", default="forward", help="method to execute (default: %(default)s)")
    run.add_argument(
        "--resolver",
        choices=("reference", "optimized", "xnnpack"),
        default="reference",
        help="LiteRT's kernels for Neutron's partitions (default: %(default)s)",
    )
    run.add_argument("--manifest", type=Path, help="its manifest (default: manifest.json next to it, if any)")
    run.add_argument("--twins", type=Path, help="folder of its host twins (default: twins/ next to it, if any)")
    run.add_argument("--alone", action="store_true", help="ignore manifest.json and twins/ next to the program")
    for name, default, what in (("mean", 0.0, "subtracted from"), ("std", 1.0, "divisor of")):
        text = f"for images: {what} pixels in 0 ... 1, one value or one per channel (default: {default:g})"
        run.add_argument(f"--{name}", type=float, nargs="+", default=[default], metavar="VALUE", help=text)
    run.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    from lowerdeck.cli.run_program import describe, run_on_device, run_program
    from lowerdeck.execution.arithmetic import fix_sums

    fix_sums()

    if options.on is not None:
        if options.method != "forward":
            raise LowerdeckError(f"devices execute the method forward only, not {options.method!r}")
        arguments = (options.program, options.inputs, options.output, options.on, options.manifest)
        print("\n".join(run_on_device(*arguments, mean=options.mean, std=options.std, beside=not options.alone)))
        return
    executed = run_program(
        options.program,
        options.inputs,
        options.output,
        method=options.method,
        manifest=options.manifest,
        twins=options.twins,
        beside=not options.alone,
        resolver=options.resolver,
        mean=options.mean,
        std=options.std,
    )
    print("\n".join(describe(options.program, executed)))
