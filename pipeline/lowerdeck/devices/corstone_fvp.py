"""Arm's Fixed Virtual Platforms, Corstone-300, 310 and 320, with the NPU: a runner's ELF that you name executes there.

The runner is ExecuTorch's `arm_executor_runner`, built with semihosting (backends/arm/scripts/build_executor_runner.sh
--pte=semihosting): it reads the program and the inputs from the host's files and writes the outputs there. Command line
and log are those of executorch.backends.arm.test.runner_utils of ExecuTorch 1.5.1.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

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
from lowerdeck.fingerprints.digests import file_digest

Platform = Literal["corstone-300", "corstone-300-u65", "corstone-310", "corstone-320"]
_EXECUTABLES: dict[Platform, str] = {
    "corstone-300": "FVP_Corstone_SSE-300_Ethos-U55",
    "corstone-300-u65": "FVP_Corstone_SSE-300_Ethos-U65",
    "corstone-310": "FVP_Corstone_SSE-310",
    "corstone-320": "FVP_Corstone_SSE-320",
}
_GET = "https://developer.arm.com/Tools%20and%20Software/Fixed%20Virtual%20Platforms (Arm's licence)"
_MAX_COMMAND_CHARACTERS = 256
"""The platform cuts longer command lines of semihosting."""
_FAULT = re.compile(r"^(?:[EF][: ].*|.*Hard fault.*|.*Assertion.*)$", re.MULTILINE)
_CYCLES = {
    "npu_active_cycles": r"NPU ACTIVE: (\d+) cycles",
    "npu_idle_cycles": r"NPU IDLE: (\d+) cycles",
    "npu_total_cycles": r"NPU TOTAL: (\d+) cycles",
    "operators_cpu_cycles": r"Operator\(s\) total: (\d+) CPU cycles",
}
"""DeviceMetric -> where the runner's performance monitor prints it."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Fields of `device.options`."""

    runner: str = "arm_executor_runner"
    """Path of the runner's ELF, built with semihosting for this platform."""
    platform: Platform = "corstone-300"
    """Which platform, and with it the names of its parameters."""
    num_macs: int = 128
    """Multiply-accumulate units of the NPU."""
    fvp: str | None = None
    """The executable, by name or path; null for Arm's name of the platform's."""
    fast: bool = True
    """Whether the NPU's model only computes (`--fast`): outputs are the same, and cycles are none. False for cycles."""
    fvp_options: list[str] = field(default_factory=list)
    """Further options of the FVP, as they are written, e.g. [-C, cpu0.CFGDTCMSZ=15]."""

    @property
    def executable(self) -> str:
        """The FVP to start."""
        return self.fvp or _EXECUTABLES[self.platform]


def describe(options: Options) -> DeviceDescription:
    """The platform; neither it nor the runner is started."""
    missing = []
    if shutil.which(options.executable) is None:
        missing.append(Missing(what=options.executable, how=f"get it from {_GET}; device.options.fvp names it"))
    if not Path(options.runner).expanduser().is_file():
        how = "build ExecuTorch's arm_executor_runner with semihosting; device.options.runner names it"
        missing.append(Missing(what=f"the runner {options.runner}", how=how))
    return DeviceDescription(
        title=f"Arm's FVP {options.platform} with an Ethos-U of {options.num_macs} MACs",
        provenance=Provenance.SIMULATED,
        gives=() if options.fast else ("memory",),
        delegates=("EthosUBackend",),
        missing=tuple(missing),
    )


def execute(options: Options, job: Job) -> Execution:
    """Execute every sample by a platform that was just started.

    Raises:
        DeviceError: a part is missing, or the platform reported a fault or wrote no outputs.
    """
    if lacking := describe(options).missing:
        raise DeviceError("; ".join(f"{part.what} is missing: {part.how}" for part in lacking))
    shutil.copy2(job.program, job.workdir / "program.pte")
    deadline, outputs, log = time.monotonic() + job.timeout_s, [], ""
    for sample in job.samples:
        log = _run(options, job, sample, deadline - time.monotonic())
        contents = b"".join(_output(job.workdir / f"out-{index}.bin", log) for index in range(len(job.outputs)))
        outputs.append(split_outputs(contents, job.outputs, "the FVP", log))
    found = {name: re.findall(pattern, log) for name, pattern in _CYCLES.items()}
    metrics = {} if options.fast else {name: float(values[-1]) for name, values in found.items() if values}
    digest = file_digest(Path(options.runner).expanduser())
    return Execution(outputs=outputs, metrics=metrics, log=log, notes=(f"runner SHA-256 {digest}",))


def command_line(options: Options, workdir: Path, num_inputs: int, timeout_s: float) -> list[str]:
    """The command that executes program.pte in `workdir` on the inputs i0.bin, i1.bin ... and writes out-0.bin ...

    Raises:
        DeviceError: it has more inputs than the platform takes.
    """
    called = "executor_runner -m program.pte -o out" + "".join(f" -i i{index}.bin" for index in range(num_inputs))
    if len(called) > _MAX_COMMAND_CHARACTERS:
        raise DeviceError(f"the program has {num_inputs} inputs; the FVP's command line has no room for so many")
    if options.platform == "corstone-320":
        board, cpu, npu = "mps4_board", "mps4_board.subsystem.cpu0", "mps4_board.subsystem.ethosu"
        further = ["vis_hdlcd.disable_visualisation=1", f"{board}.uart0.unbuffered_output=1"]
        further.append(f"{board}.uart0.shutdown_on_eot=1")
    else:
        board, cpu, npu, further = "mps3_board", "cpu0", "ethosu", []
    parameters = [
        f"{npu}.num_macs={options.num_macs}",
        f"{board}.visualisation.disable-visualisation=1",
        f"{board}.telnetterminal0.start_telnet=0",
        f"{board}.uart0.out_file=-",
        *further,
        *(f"{cpu}.semihosting-enable=1", f"{cpu}.semihosting-stack_base=0", f"{cpu}.semihosting-heap_limit=0"),
        f"{cpu}.semihosting-cwd={workdir}",
        *([f"{npu}.extra_args=--fast"] if options.fast else []),
        f"{cpu}.semihosting-cmd_line={called}",
    ]
    settings = [argument for parameter in parameters for argument in ("-C", parameter)]
    runner = str(Path(options.runner).expanduser())
    return [options.executable, *settings, *options.fvp_options, "-a", runner, "--timelimit", f"{timeout_s:.0f}"]


def _run(options: Options, job: Job, sample: Sequence[DeviceTensor], timeout_s: float) -> str:
    """The log of one execution."""
    for index, tensor in enumerate(sample):
        (job.workdir / f"i{index}.bin").write_bytes(tensor.content)
    for stale in job.workdir.glob("out-*.bin"):
        stale.unlink()
    command = command_line(options, job.workdir, len(sample), max(1.0, timeout_s))
    answer, errors = converse(command, b"", timeout_s=max(0.1, timeout_s), what="the FVP")
    log = answer.decode(errors="replace") + errors
    if faults := _FAULT.findall(answer.decode(errors="replace")):
        raise DeviceError("the FVP reports:\n  " + "\n  ".join(fault.strip() for fault in faults[:8]), log)
    return log


def _output(path: Path, log: str) -> bytes:
    if not path.is_file():
        raise DeviceError(f"the runner wrote no {path.name}", log)
    return path.read_bytes()
