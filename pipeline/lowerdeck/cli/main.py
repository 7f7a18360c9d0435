"""Builds PyTorch models for edge processors, explains, compares and promotes the builds."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NoReturn

from lowerdeck.cli import (
    add,
    check_runtime,
    clean,
    compare,
    completion,
    conf,
    devices,
    doctor,
    explain,
    flavors,
    ledger,
    measure,
    operators,
    promote,
    quantization,
    repro,
    sensitivity,
    sweep,
    workspace,
)
from lowerdeck.compat.terminal import escaped_output
from lowerdeck.contracts.errors import LowerdeckError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command with `arguments`, or with those of the process.

    Returns:
        Exit status: 0; 1 with a message after an error; 130 after Ctrl-C. An unknown command
        ends the process with the usage and status 2.
    """
    with escaped_output():
        return _main(arguments)


def _main(arguments: Sequence[str] | None) -> int:
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and (not hasattr(options, "overrides") or any(text.startswith("-") for text in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:  # argparse accepts positional arguments on one side of an option only
        options.overrides = [*options.overrides, *rest]
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # contains plugins/, and the installed command does not search the current folder
    try:
        options.run(options)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `lowerdeck explain | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more when it ends
        return 1
    except Exception as error:  # the last frame of a command: whatever it is becomes a message
        from lowerdeck.execution.failures import failure_message

        print(f"lowerdeck {options.command}: {failure_message(error, options.command)}", file=sys.stderr)
        return 1
    return 0


class _Version(argparse.Action):
    """Looks for the version only when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest=argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from lowerdeck.workspace.contents import installed_version

        print(f"lowerdeck {installed_version()}")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lowerdeck", description=__doc__)
    parser.add_argument("--version", action=_Version, help="print the version of the installed package and exit")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    workspace.add(commands)
    repro.add(commands)
    add.add(commands)
    conf.add(commands)
    doctor.add(commands)
    clean.add(commands)
    report = commands.add_parser("report", help="print the metrics of the build in build/ and write build/report.html")
    report.add_argument("--md", action="store_true", help="print Markdown, for a comment on a pull request")
    report.set_defaults(run=_report)
    explain.add(commands)
    quantization.add(commands)
    sensitivity.add(commands)
    flavors.add(commands)
    compare.add(commands)
    sweep.add(commands)
    promote.add(commands)
    ledger.add(commands)
    operators.add(commands)
    devices.add(commands)
    measure.add(commands)
    check_runtime.add(commands)
    _add_run(commands.add_parser("run", help="execute a .pte on this host or a device and write its outputs"))
    ui = commands.add_parser("ui", help="open MLflow on the recorded builds")
    ui.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    ui.add_argument("--port", type=int, default=5000, help="port to listen on (default: %(default)s)")
    ui.set_defaults(run=_ui)
    completion.add(commands, _parser)
    template = commands.add_parser("plots-template", help="make `dvc plots show` work without a network in this clone")
    template.set_defaults(run=_plots_template)
    return parser


def _add_run(run: argparse.ArgumentParser) -> None:
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
    completion.complete_with(device, "conf --names device")
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


def _report(options: argparse.Namespace) -> None:
    from lowerdeck.artifacts import paths
    from lowerdeck.artifacts.files import write_text
    from lowerdeck.compat.terminal import terminal_console
    from lowerdeck.pages import report
    from lowerdeck.report import terminal
    from lowerdeck.report.build import read_build
    from lowerdeck.report.markdown import as_markdown

    build = read_build()
    write_text(paths.REPORT, report.render(build, has_comparison=paths.COMPARISON.is_file()))
    if options.md:
        print(as_markdown(build), end="")
    else:
        terminal.print_table(build, terminal_console())


def _ui(options: argparse.Namespace) -> None:
    from lowerdeck.tracking import recorded_build, ui

    location = ui.locate(recorded_build.tracking_config(), with_view=True)
    address = location.address(options.host, options.port)
    if location.has_server:
        print(f"The builds are recorded on a server: {address}")
        return
    _check_port_free(options.host, options.port)
    print(f"In a few seconds: {address}   (Ctrl-C ends it)", flush=True)
    ui.serve(location, options.host, options.port)


def _check_port_free(host: str, port: int) -> None:
    import socket

    try:
        with closing(socket.socket()) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
    except (OSError, OverflowError) as error:
        raise LowerdeckError(f"cannot listen on {host}, port {port}: {error}; choose another with `--port`") from None


def _plots_template(options: argparse.Namespace) -> None:
    from lowerdeck.pages import dvc_plots_template

    print(f"`dvc plots show` works without a network now: {dvc_plots_template.install()}")
