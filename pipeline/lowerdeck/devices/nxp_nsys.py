"""NXP's simulator of the Neutron NPU, NSYS: ExecuTorch's nxp_executor_runner executes a program with it.

The runner (examples/nxp/executor_runner) is linked with the Neutron driver of the eIQ Neutron SDK for the simulator. It
executes `--inputs FILE,...` or all files of `--dataset FOLDER`, and writes OUTPUT/NAME/NNNN.bin for every sample. Its
command line is that of executorch.backends.nxp.tests.nsys_testing of ExecuTorch 1.5.1.
"""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lowerdeck.contracts.devices import (
    DeviceDescription,
    DeviceError,
    DeviceTensor,
    Execution,
    Job,
    Missing,
    Provenance,
)
from lowerdeck.devices.processes import converse
from lowerdeck.devices.tensors import split_outputs

_SDK = "eiq_neutron_sdk"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Fields of `device.options`."""

    runner: str = "nxp_executor_runner"
    """The runner, built for the simulator (-DNEUTRON_CMODEL), by name or path."""
    nsys: str = "nsys"
    """The simulator, by name or path; NXP's package eiq_nsys has it."""
    config: str = "neutron-imxrt700.ini"
    """The simulator's configuration; examples/nxp/executor_runner of ExecuTorch has that of the i.MX RT700."""
    firmware: str | None = None
    """Neutron's firmware for the simulator; null for target/TARGET/cmodel/NeutronFirmware.elf of the SDK."""
    target: str = "imxrt700"
    """Name of the device in the SDK."""

    def firmware_file(self) -> Path | None:
        """The firmware, None where the SDK that has it is not installed."""
        if self.firmware is not None:
            return Path(self.firmware).expanduser()
        spec = importlib.util.find_spec(_SDK)
        if spec is None or spec.origin is None:
            return None
        return Path(spec.origin).parent / "target" / self.target / "cmodel" / "NeutronFirmware.elf"


def describe(options: Options) -> DeviceDescription:
    """The simulator and its parts; nothing is started."""
    firmware, missing = options.firmware_file(), []
    for name, how in (
        (options.runner, "build examples/nxp/executor_runner of ExecuTorch with -DNEUTRON_CMODEL"),
        (options.nsys, "pip install eiq_nsys from NXP's index"),
    ):
        if shutil.which(name) is None:
            missing.append(Missing(what=name, how=how))
    if not Path(options.config).expanduser().is_file():
        missing.append(Missing(what=options.config, how="device.options.config names the simulator's .ini file"))
    if firmware is None or not firmware.is_file():
        missing.append(Missing(what="Neutron's firmware", how=f"pip install {_SDK} from NXP's index"))
    return DeviceDescription(
        title=f"NXP's simulator NSYS of the Neutron NPU ({options.target})",
        provenance=Provenance.SIMULATED,
        gives=(),
        delegates=("NeutronBackend",),
        missing=tuple(missing),
    )


def execute(options: Options, job: Job) -> Execution:
    """Execute the samples one by one, each in an execution of the runner.

    Raises:
        DeviceError: a part is missing, the runner failed, or wrote no outputs.
    """
    if lacking := describe(options).missing:
        raise DeviceError("; ".join(f"{part.what} is missing: {part.how}" for part in lacking))
    deadline, outputs, log = time.monotonic() + job.timeout_s, [], ""
    for number, sample in enumerate(job.samples):
        folder = job.workdir / f"sample_{number}"
        returned = folder / "outputs"
        returned.mkdir(parents=True)
        command = command_line(options, job.program, _written(sample, folder), returned)
        answer, errors = converse(command, b"", timeout_s=max(0.1, deadline - time.monotonic()), what="NSYS")
        log = answer.decode(errors="replace") + errors
        contents = b"".join(path.read_bytes() for path in sorted(returned.rglob("*.bin")) if path.is_file())
        outputs.append(split_outputs(contents, job.outputs, "nxp_executor_runner", log))
    return Execution(outputs=outputs, log=log)


def command_line(options: Options, program: Path, inputs: Sequence[Path], returned: Path) -> list[str]:
    """The command that executes a program on one sample."""
    return [
        *(options.runner, "--model", str(program), "--inputs", ",".join(map(str, inputs)), "--output", str(returned)),
        *("--firmware", str(options.firmware_file()), "--nsys", str(shutil.which(options.nsys) or options.nsys)),
        *("--nsys_config", str(Path(options.config).expanduser())),
    ]


def _written(sample: Sequence[DeviceTensor], folder: Path) -> list[Path]:
    paths = []
    for index, tensor in enumerate(sample):
        paths.append(folder / f"{index:04d}.bin")
        paths[-1].write_bytes(tensor.content)
    return paths
