"""An Android device by adb: a compiled runner, the program and the samples are pushed, executed and pulled back.

The runner is that of linux_ssh, compiled with Android's NDK against ExecuTorch's libraries for Android, in one folder
with the shared libraries that it needs (device.options.runner).
"""

from __future__ import annotations

import shlex
import shutil
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from lowerdeck.contracts.devices import DeviceDescription, DeviceError, Execution, Job, Missing, Provenance
from lowerdeck.devices import native, wheel
from lowerdeck.devices.processes import converse

_FOLDER = "/data/local/tmp"
"""Where a device's shell may write and execute files."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Fields of `device.options`."""

    runner: str = "runner_android"
    """Folder on this machine with a compiled runner for the device and the libraries that it needs."""
    serial: str | None = None
    """Which device, as `adb devices` lists it; null where there is one."""
    num_threads: int = 1
    """Threads of the runtime, which XNNPACK's kernels share."""
    cpus: str | None = None
    """Mask of the cores to use, as taskset takes it, e.g. `f0` for the big ones of eight; null for any."""
    adb: str = "adb"
    """The client, by name or path."""

    def __post_init__(self) -> None:
        if not 1 <= self.num_threads <= 1024:
            raise ValueError(f"num_threads is {self.num_threads}; it must be 1 to 1024")
        if self.cpus is not None and not all(character in "0123456789abcdefABCDEF" for character in self.cpus):
            raise ValueError(f"cpus is {self.cpus!r}; it must be a mask in hexadecimal digits, e.g. f0")


def describe(options: Options) -> DeviceDescription:
    """The device, without connecting to it."""
    missing = []
    if shutil.which(options.adb) is None:
        missing.append(Missing(what=options.adb, how="apt-get install adb"))
    if not (Path(options.runner).expanduser() / native.RUNNER).is_file():
        how = "compile it with Android's NDK (docs/devices.md); device.options.runner names its folder"
        missing.append(Missing(what=f"the runner in {options.runner}", how=how))
    return DeviceDescription(
        title=f"a compiled runner on Android by adb{f' ({options.serial})' if options.serial else ''}",
        provenance=Provenance.MEASURED,
        gives=("latency", "profile", "memory", "state"),
        lock=f"android_adb {options.serial or 'the only one'}",
        missing=tuple(missing),
    )


def execute(options: Options, job: Job) -> Execution:
    """Execute the job; nothing is left on the device.

    Raises:
        DeviceError: a part is missing, the device is absent, or its runner failed.
    """
    if lacking := describe(options).missing:
        raise DeviceError("; ".join(f"{part.what} is missing: {part.how}" for part in lacking))
    place, deadline = f"{_FOLDER}/lowerdeck-{uuid.uuid4().hex[:12]}", time.monotonic() + job.timeout_s
    request, answer = job.workdir / "request", job.workdir / "answer"
    request.write_bytes(native.request(job, options.num_threads))

    def adb(*arguments: str) -> str:
        command = [options.adb, *(("-s", options.serial) if options.serial else ()), *arguments]
        left = max(0.1, deadline - time.monotonic())
        output, errors = converse(command, b"", timeout_s=left, what=f"adb {arguments[0]}")
        return output.decode(errors="replace") + errors

    try:
        adb("shell", f"mkdir -p {place}")
        for path in sorted(Path(options.runner).expanduser().iterdir()):
            adb("push", str(path), f"{place}/{path.name}")
        adb("push", str(request), f"{place}/request")
        pinned = f"taskset {options.cpus} " if options.cpus else ""
        # Its own status line: older versions of adb lose that of the command.
        run = f"chmod 755 runner && LD_LIBRARY_PATH=. {pinned}./runner < request > answer; echo status $?"
        log = adb("shell", f"cd {shlex.quote(place)} && {run}")
        if not log.rstrip().endswith("status 0") and "status 0" not in log.splitlines():
            raise DeviceError(f"the runner on the device failed: {log.strip()[-1000:]}", log)
        adb("pull", f"{place}/answer", str(answer))
    finally:
        deadline = max(deadline, time.monotonic() + 10)
        _forget(adb, place)
    return wheel.execution(answer.read_bytes() if answer.is_file() else b"", log, "the Android device")


def _forget(adb: object, place: str) -> None:
    """Remove the folder, where the device is still there."""
    assert callable(adb)
    try:
        adb("shell", f"rm -rf {place}")
    except DeviceError:
        return
