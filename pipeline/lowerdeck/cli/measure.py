"""`lowerdeck measure`: executes and times a `.pte` on a device."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowerdeck.artifacts import paths
from lowerdeck.cli.commands import HELP
from lowerdeck.contracts.devices import DeviceError
from lowerdeck.contracts.errors import LowerdeckError, ProgramError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from lowerdeck.steps.measurement import Measurement

_RANDOM = "The inputs were random; where their integers are indices, e.g. of tokens, pass possible ones with --inputs"


def add(commands: Any) -> None:
    """Add the command to the parser of `lowerdeck`."""
    command = commands.add_parser("measure", help=HELP["measure"])
    command.description = (
        "Execute and time a .pte on a device. The stage `measure` does so in a build; this command changes no build."
    )
    command.add_argument(
        "program", type=Path, nargs="?", default=paths.PROGRAM, metavar="PROGRAM.pte", help="default: %(default)s"
    )
    command.add_argument("--on", metavar="DEVICE", help="an option of conf/device (default: that of params.yaml)")
    command.add_argument("--inputs", type=Path, nargs="+", default=[], metavar="FILE", help="as for `lowerdeck run`")
    command.add_argument("--repetitions", type=int, metavar="N", help="timed executions (default: the device's)")
    command.add_argument("--warm-up", type=int, metavar="N", help="executions before them (default: the device's)")
    command.add_argument("--json", action="store_true", help="print everything as JSON")
    command.set_defaults(run=_measure)


def _measure(options: argparse.Namespace) -> None:
    from lowerdeck.artifacts.measurements import described, with_compiler_estimates
    from lowerdeck.cli.on_device import kernel_definitions_of, open_device, read_params_here, report
    from lowerdeck.execution.chosen.device import settings_of
    from lowerdeck.steps.measure import measure

    name = options.on or read_params_here().get("device") or "none"
    if name == "none":
        raise LowerdeckError("no device is chosen; name one with --on, `lowerdeck devices` lists them")
    place, config = open_device(name)
    samples, origin = _samples(options)
    given = {"warm_up": options.warm_up, "repetitions": options.repetitions}
    chosen = {name: value for name, value in given.items() if value is not None}
    definitions = kernel_definitions_of(options.program.with_name(paths.MANIFEST.name))
    settings = dataclasses.replace(settings_of(config), kernel_definitions=definitions, **chosen)
    if min(settings.warm_up, settings.repetitions) < 0:
        raise LowerdeckError("--warm-up and --repetitions must not be negative")
    try:
        measured = with_compiler_estimates(measure(options.program, samples, place, settings))
    except DeviceError as error:
        if options.inputs or all(value.is_floating_point() for value in samples[0]):
            raise
        raise DeviceError(f"{error}\n{_RANDOM}", error.log) from error
    if measured.failure is not None:
        raise LowerdeckError(measured.failure)
    compared = _compared(options.program, samples, measured)
    if options.json:
        print(json.dumps(described(measured) | {"inputs": origin, "compared": compared}, indent=2))
        return
    print("\n".join([*report(measured, options.program), f"inputs: {origin}", f"outputs: {compared}"]))


def _samples(options: argparse.Namespace) -> tuple[list[tuple[torch.Tensor, ...]], str]:
    """Inputs and where they come from."""
    from lowerdeck.cli.on_device import forward_of, random_inputs

    expected = forward_of(options.program).inputs
    if not options.inputs:
        return [random_inputs(expected)], "random, as none were given"
    from lowerdeck.cli.program_inputs import Normalization, read_runs
    from lowerdeck.runtime.twins import read_manifest

    manifest = options.program.with_name(paths.MANIFEST.name)
    described = read_manifest(manifest).inputs if manifest.is_file() else ()
    runs = read_runs(options.inputs, expected, Normalization(mean=(0.0,), std=(1.0,)), described)
    return [run.inputs for run in runs], ", ".join(map(str, options.inputs))


def _compared(program: Path, samples: Sequence[tuple[torch.Tensor, ...]], measured: Measurement) -> str:
    """How the outputs differ from this host's, in a line."""
    from lowerdeck.runtime.loading import open_program
    from lowerdeck.steps.device_metrics import output_difference

    manifest, twins = (program.parent / path.name for path in (paths.MANIFEST, paths.TWINS))
    try:
        host = open_program(
            program,
            manifest=manifest if manifest.is_file() else None,
            twins=twins if twins.is_dir() else None,
        )
        wanted = []
        for sample in samples:
            host.reset()
            wanted.append(host(sample))
    except ProgramError as error:
        return f"not compared, as this host cannot execute the program: {error}"
    # Integers differ by steps; floats have no step here, as only a build's manifest knows it.
    steps = [None if output.is_floating_point() else 1.0 for output in measured.outputs[0]]
    found = output_difference(measured.outputs, wanted, steps)
    off = f"{found.max_error_lsb:g} LSB" if found.max_error_lsb is not None else f"{found.max_error:.3g}"
    return f"{100 * found.exact_share:.2f} % equal those of {host.executor} on this host, at most {off} off"
