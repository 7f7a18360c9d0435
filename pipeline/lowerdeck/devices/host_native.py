"""ExecuTorch's C++ runtime on this machine, as the installed wheel has it, in a process of its own."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass

from lowerdeck.contracts.devices import DeviceDescription, Execution, Job, Provenance
from lowerdeck.devices import wheel
from lowerdeck.devices.images import wheel_image
from lowerdeck.devices.processes import converse

_WHAT = "ExecuTorch's runtime on this machine"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Fields of `device.options`."""

    num_threads: int = 1
    """Threads of the runtime, which XNNPACK's kernels share."""

    def __post_init__(self) -> None:
        if not 1 <= self.num_threads <= 1024:
            raise ValueError(f"num_threads is {self.num_threads}; it must be 1 to 1024")


def describe(options: Options) -> DeviceDescription:
    """The runtime of the installed wheel; nothing is missing, as the project depends on it."""
    threads = "1 thread" if options.num_threads == 1 else f"{options.num_threads} threads"
    return DeviceDescription(
        title=f"{_WHAT} ({platform.machine()}, {threads})",
        provenance=Provenance.MEASURED,
        gives=("latency", "profile", "memory", "intermediates", "state"),
        image=wheel_image,
        lock="host_native",  # two measurements at once would time each other
    )


def execute(options: Options, job: Job) -> Execution:
    """Execute the job in a child process, which a crash of the runtime ends alone."""
    command = [sys.executable, "-P", str(wheel.RUNNER)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    request = wheel.request(job, options.num_threads)
    answer, log = converse(command, request, timeout_s=job.timeout_s, what=_WHAT, environment=environment)
    return wheel.execution(answer, log, _WHAT)
