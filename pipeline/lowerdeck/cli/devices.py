"""`lowerdeck devices`: the devices of conf/device, what is missing to use them, and a self-test."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any

from lowerdeck.cli.commands import HELP
from lowerdeck.contracts.errors import LowerdeckError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Status:
    """The status of one device."""

    device: str
    """Name of the file in conf/device."""
    chosen: bool
    """Whether params.yaml chooses it."""
    title: str | None = None
    provenance: str | None = None
    """Where its metrics come from."""
    gives: list[str] | None = None
    """What it reports besides outputs."""
    missing: list[dict[str, str]] | None = None
    """Parts that this machine lacks: `what`, and `how` to get it; empty where it is ready."""
    problem: str | None = None
    """What is wrong with its configuration."""

    @property
    def is_ready(self) -> bool:
        """Whether it can be used here."""
        return self.problem is None and not self.missing


def add(commands: Any) -> None:
    """Add the command to the parser of `lowerdeck`."""
    command = commands.add_parser("devices", help=HELP["devices"])
    command.add_argument("--json", action="store_true", help="print them as JSON")
    command.set_defaults(run=_list)
    actions = command.add_subparsers(metavar="ACTION")
    check = actions.add_parser("check", help="execute a small program there and compare its outputs")
    check.add_argument("name", metavar="NAME")
    check.set_defaults(run=_check)
    image = actions.add_parser("image", help="print what a device's runtime offers, as YAML for `check-runtime`")
    image.add_argument("name", metavar="NAME")
    image.set_defaults(run=_image)
    runner = actions.add_parser("runner", help="compile a runner for a Linux board without Python")
    runner.description = (
        "Compile the runner of device linux_ssh against the C++ SDK in ExecuTorch's wheel for the board's processor, "
        "and put it with its libraries into a folder, which `device.options.runner` names."
    )
    runner.add_argument("--compiler", required=True, help='C++17 compiler with its flags, e.g. "aarch64-linux-gnu-g++"')
    runner.add_argument(
        "--sdk", required=True, type=Path, help="the wheel, or the folder `executorch` of an installed one"
    )
    runner.add_argument(
        "--output",
        required=True,
        type=Path,
        metavar="FOLDER",
        help="a new folder, or that of an earlier runner, whose files are replaced",
    )
    runner.set_defaults(run=_runner)


def statuses() -> list[Status]:
    """The devices by name; a device whose configuration is wrong does not hide the others."""
    from lowerdeck.cli.on_device import CONF, open_device, read_params_here
    from lowerdeck.config.device import device_names

    chosen = read_params_here().get("device")
    found = []
    for name in device_names(CONF):
        status = Status(device=name, chosen=name == chosen)
        try:
            described = open_device(name)[0].describe()
        except LowerdeckError as error:
            found.append(dataclasses.replace(status, problem=str(error)))
            continue
        found.append(
            dataclasses.replace(
                status,
                title=described.title,
                provenance=described.provenance.value,
                gives=["outputs", *described.gives],
                missing=[dataclasses.asdict(part) for part in described.missing],
            )
        )
    return found


def _list(options: argparse.Namespace) -> None:
    found = statuses()
    if options.json:
        print(json.dumps([dataclasses.asdict(status) for status in found], indent=2))
        return
    from lowerdeck.compat.terminal import terminal_console

    console = terminal_console()
    console.print(_table(found))
    for status in found:
        for part in status.missing or ():
            console.print(f"{status.device} lacks {part['what']}: {part['how']}", markup=False, soft_wrap=True)
        if status.problem:
            console.print(f"{status.device}: {status.problem}", markup=False, soft_wrap=True)


def _table(found: list[Status]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("device", "ready", "metrics are", "gives", "what it is"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("device", "ready", "metrics are"))
    for status in found:
        table.add_row(
            f"{status.device} *" if status.chosen else status.device,
            "yes" if status.is_ready else "no",
            status.provenance or "",
            ", ".join(status.gives or ()),
            status.title or "",
        )
    return table


def _check(options: argparse.Namespace) -> None:
    import time

    import torch

    from lowerdeck.cli.on_device import open_device, report
    from lowerdeck.devices.self_test import expected
    from lowerdeck.execution.chosen.device import settings_of
    from lowerdeck.steps.measure import measure

    place, config = open_device(options.name)
    if lacking := place.describe().missing:
        raise LowerdeckError("; ".join(f"{part.what} is missing: {part.how}" for part in lacking))
    samples, start = expected.samples(), time.perf_counter()
    settings = dataclasses.replace(settings_of(config), warm_up=2, repetitions=20, profile=True)
    measured = measure(expected.PROGRAM, samples, place, settings)
    if measured.failure is not None:
        raise LowerdeckError(measured.failure)
    for sample, outputs in zip(samples, measured.outputs, strict=True):
        for found, wanted in zip(outputs, expected.outputs(sample), strict=True):
            if not torch.equal(found, wanted):
                raise LowerdeckError(
                    f"{options.name} computes something else: {found.tolist()} instead of {wanted.tolist()}"
                )
    print("\n".join(report(measured)))
    seconds = time.perf_counter() - start
    print(f"{options.name} works: {len(samples)} samples gave exact outputs, {seconds:.1f} s in all")


def _runner(options: argparse.Namespace) -> None:
    from lowerdeck.devices import native

    made = native.build(shlex.split(options.compiler), options.sdk, options.output)
    size = sum(path.stat().st_size for path in made.iterdir())
    print(f"{made}: the runner and its libraries, {size:,} bytes; device.options.runner: {made.resolve()}")


def _image(options: argparse.Namespace) -> None:
    import yaml

    from lowerdeck.cli.on_device import open_device

    described = open_device(options.name)[0].describe()
    if described.image is None:
        raise LowerdeckError(f"the runtime of {options.name} is unknown, so that programs are not checked against it")
    values = dataclasses.asdict(described.image())
    plain = {key: list(value) if isinstance(value, (tuple, list)) else value for key, value in values.items()}
    print(yaml.safe_dump(plain, sort_keys=False), end="")
