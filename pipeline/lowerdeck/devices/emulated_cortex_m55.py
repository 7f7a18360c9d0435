"""Arm's ExecuTorch firmware on QEMU's mps3-an547: Cortex-M55 code, ExecuTorch's C++ runtime and CMSIS-NN, without NPU.

The firmware is the inference runner for Corstone-300 of the package mlia-ethos-u. It reads the program at 0x90000000
and the inputs at 0x92000000, and writes the outputs to 0x93000000. It starts by initializing an Ethos-U, which QEMU
does not have: the function that does so is made to return 0 in the emulated memory, through QEMU's stub for GDB, and
the firmware's file stays as it is.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing, suppress
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
from lowerdeck.contracts.runtime_images import RuntimeImage
from lowerdeck.devices import arm_runner, images
from lowerdeck.devices.gdb import GdbStub
from lowerdeck.devices.tensors import split_outputs
from lowerdeck.fingerprints.digests import file_digest
from lowerdeck.formats.pte import Method, read_pte
from lowerdeck.runtime.child_processes import kill_group

PACKAGE = "mlia-ethos-u"
INSTALL = f"pip install --no-deps {PACKAGE}==0.1.0, which needs none of its dependencies; or lowerdeck[emulator]"
_IMAGE = "inference_runner-sse-300-26.03.0-executorch-ethos-U55-Default-noTA/mlek_inference_runner.axf"
_PROGRAM, _INPUTS, _OUTPUTS = 0x90000000, 0x92000000, 0x93000000
MAX_PROGRAM_BYTES = _INPUTS - _PROGRAM
_ROOM = 0x01000000
"""Bytes for inputs, and for outputs, between these addresses."""
_METRICS = {
    "method_allocator_bytes": r"Method memory allocated: (\d+) bytes",
    "planned_memory_bytes": r"Total planned memory allocated: (\d+) bytes",
    "method_pool_peak_bytes": r"Method memory: Used: \d+; Peak: (\d+);",
    "temporary_peak_bytes": r"Temp memory: Used: \d+; Peak: (\d+);",
}
"""DeviceMetric -> where the firmware's log has it; the last line counts, because peaks grow."""
NOTE = f"the firmware's {arm_runner.NPU_INIT} was made to return 0, because QEMU has no NPU"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Fields of `device.options`."""

    qemu: str = "qemu-system-arm"
    """The emulator, by name or path."""
    image: str | None = None
    """Path of the firmware (mlek_inference_runner.axf); null for that of the installed package mlia-ethos-u."""


def describe(options: Options) -> DeviceDescription:
    """The emulator and its firmware; neither is started."""
    missing, image = [], firmware(options)
    if shutil.which(options.qemu) is None:
        missing.append(Missing(what=options.qemu, how="apt-get install qemu-system-arm"))
    if image is None:
        what = options.image or f"Arm's firmware (package {PACKAGE})"
        missing.append(Missing(what=what, how=INSTALL))
    return DeviceDescription(
        title="Arm's ExecuTorch firmware on QEMU's mps3-an547 (Cortex-M55, no NPU)",
        provenance=Provenance.EMULATED,
        gives=("memory", "instructions", "intermediates"),
        image=lambda: runtime_image(options),
        delegates=(),
        missing=tuple(missing),
    )


def runtime_image(options: Options) -> RuntimeImage:
    """What the firmware offers, as it was probed once.

    Raises:
        DeviceError: it is not installed, or is another one than was probed.
    """
    kept, path = images.kept_image("mlek_sse_300_executorch_26_03"), firmware(options)
    if path is None:
        raise DeviceError(f"Arm's firmware is missing: {describe(options).missing[-1].how}")
    if (found := file_digest(path)) != kept.sha256:
        raise DeviceError(f"{path} has SHA-256 {found[:12]}; known is {kept.name} {kept.version}, {kept.sha256}")
    return dataclasses.replace(kept, delegates=())  # there is no NPU for its Ethos-U delegate


def execute(options: Options, job: Job) -> Execution:
    """Execute the job; every sample is executed by a machine that was just switched on.

    The first sample is executed once more where instructions are to be counted: counting makes the emulator slower.

    Raises:
        DeviceError: a part is missing, or the firmware did not return outputs.
    """
    if lacking := describe(options).missing:
        raise DeviceError("; ".join(f"{part.what} is missing: {part.how}" for part in lacking))
    machine, logs, outputs = _Machine(options, job), list[str](), []
    for sample in job.samples:
        raw, log, _ = machine.boot(sample)
        outputs.append(split_outputs(raw, job.outputs, "the firmware", log))
        logs.append(log)
    metrics = {
        name: float(max(int(found[-1]) for log in logs if (found := re.findall(pattern, log))))
        for name, pattern in _METRICS.items()
        if any(re.search(pattern, log) for log in logs)
    }
    counted = None
    if job.samples and (job.profile or job.intermediates):
        raw, log, counted = machine.boot(job.samples[0], observed=_method_of(job.program))
        if split_outputs(raw, job.outputs, "the firmware", log) != outputs[0]:
            raise DeviceError("the firmware computed something else while its instructions were counted", log)
        assert counted is not None
        metrics["instructions"] = float(counted.instructions)
    return Execution(
        outputs=outputs,
        metrics=metrics,
        operator_instructions=counted.by_instruction if counted else {},
        intermediates=counted.tensors if counted else {},
        log=logs[-1] if logs else "",
        notes=(NOTE,),
    )


def _method_of(program: Path) -> Method:
    return next(method for method in read_pte(program.read_bytes()) if method.name == "forward")


def firmware(options: Options) -> Path | None:
    """The firmware's file, None where it is missing."""
    if options.image is not None:
        path = Path(options.image).expanduser()
        return path if path.is_file() else None
    with suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files(PACKAGE) or ():
            if file.as_posix().endswith(_IMAGE):
                located = Path(str(file.locate()))
                return located if located.is_file() else None
    return None


class _Machine:
    """Executions of one program, each by a machine that was just switched on."""

    def __init__(self, options: Options, job: Job) -> None:
        image = firmware(options)
        assert image is not None
        self._qemu, self._image, self._job = options.qemu, image, job
        self._deadline = time.monotonic() + job.timeout_s

    def boot(
        self, sample: Sequence[DeviceTensor], observed: Method | None = None
    ) -> tuple[bytes, str, arm_runner.Observed | None]:
        """Outputs and log of one execution, and what was seen of it where a method is to be observed."""
        inputs = b"".join(tensor.content for tensor in sample)
        if len(inputs) > _ROOM:
            raise DeviceError(f"the firmware has room for {_ROOM:,} bytes of inputs; the sample has {len(inputs):,}")
        with tempfile.TemporaryDirectory(dir=self._job.workdir) as name:
            folder = Path(name)
            (folder / "inputs.bin").write_bytes(inputs)
            with (folder / "qemu.log").open("wb") as errors:
                emulator = subprocess.Popen(
                    self._command(folder, is_counting=observed is not None),
                    stdin=subprocess.DEVNULL,
                    stdout=errors,
                    stderr=errors,
                    start_new_session=True,
                )
            try:
                return self._run(emulator, folder, observed)
            finally:
                kill_group(emulator)

    def _command(self, folder: Path, *, is_counting: bool) -> list[str]:
        serial, stub = folder / "serial.log", folder / "gdb"
        # Recorded, not only counted: the monitor tells the count of a recording alone. It takes some 40 kB.
        counting = ["-icount", f"shift=0,sleep=off,rr=record,rrfile={_escaped(folder / 'record')}"]
        return [
            *(self._qemu, "-M", "mps3-an547", "-display", "none", "-monitor", "none", "-semihosting", "-S"),
            *("-serial", f"file:{_escaped(serial)}", "-kernel", str(self._image)),
            *("-chardev", f"socket,id=gdb,path={_escaped(stub)},server=on,wait=off", "-gdb", "chardev:gdb"),
            *("-device", f"loader,file={_escaped(self._job.program)},addr={_PROGRAM:#x},force-raw=on"),
            *("-device", f"loader,file={_escaped(folder / 'inputs.bin')},addr={_INPUTS:#x},force-raw=on"),
            *(counting if is_counting else ()),
        ]

    def _run(
        self, emulator: subprocess.Popen[bytes], folder: Path, observed: Method | None
    ) -> tuple[bytes, str, arm_runner.Observed | None]:
        serial, seen = folder / "serial.log", None
        try:
            stub = GdbStub(folder / "gdb", self._deadline, lambda: emulator.poll() is None)
            with closing(stub):
                if observed is None:
                    arm_runner.run_to_end(stub, self._image)
                else:
                    seen = arm_runner.observe(stub, self._image, observed, tensors=self._job.intermediates)
                log = _log(serial)
                copied = re.search(rf"output tensor/s worth (\d+) bytes copied to {_OUTPUTS:#x}", log)
                if copied is None or int(copied[1]) > _ROOM:
                    raise DeviceError(f"the firmware ended without outputs{_ending(log)}", log)
                return stub.read(_OUTPUTS, int(copied[1])), log, seen
        except DeviceError as error:
            if error.log:
                raise
            log = _log(serial) + _log(folder / "qemu.log")
            raise DeviceError(f"{error}{_ending(log)}", log) from error


def _escaped(path: Path) -> str:
    """A path within an option of QEMU, where a comma ends a value."""
    return str(path.resolve()).replace(",", ",,")


def _log(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _ending(log: str) -> str:
    lines = [line for line in log.splitlines() if line.strip()]
    lines = [line for line in lines if "E [ExecuTorch" in line or line.startswith("ERROR")] or lines[-6:]
    return "; its log ends with:\n  " + "\n  ".join(lines) if lines else ""
