"""A Linux board by ssh with ExecuTorch's wheel in its Python: Raspberry Pi, i.MX 8 and 93, a server.

One connection carries everything: the runner's source, the program and the inputs go in, outputs, times and the ETDump
come out. Nothing is installed on the board or left there.
"""

from __future__ import annotations

import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from lowerdeck.contracts.devices import DeviceDescription, DeviceError, Execution, Job, Missing, Provenance
from lowerdeck.devices import wheel
from lowerdeck.devices.processes import converse

_UNREACHABLE = "ended with status 255"
"""ssh's own failure, as `converse` states it; other statuses are those of the command on the board."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Fields of `device.options`."""

    host: str
    """Name or address of the board, or a `Host` of ~/.ssh/config."""
    port: int | None = None
    """Null for that of ssh's own configuration."""
    user: str | None = None
    """Null for that of ssh's own configuration."""
    identity_file: str | None = None
    """Private key; null for those that ssh tries by itself. Passwords are not asked for."""
    python: str = "python3"
    """Python on the board that has ExecuTorch, e.g. `venv/bin/python`."""
    num_threads: int = 1
    """Threads of the runtime, which XNNPACK's kernels share."""
    ssh: str = "ssh"
    """The client on this machine, by name or path."""
    ssh_options: list[str] = field(default_factory=list)
    """Others of ssh's options, each as for `-o`, e.g. `StrictHostKeyChecking=accept-new`."""

    def __post_init__(self) -> None:
        if not self.host or self.host.startswith("-") or any(character.isspace() for character in self.host):
            raise ValueError(f"host is {self.host!r}; it must be a name or an address")
        if self.user is not None and (not self.user or self.user.startswith("-") or "@" in self.user):
            raise ValueError(f"user is {self.user!r}; it must be a name")
        if self.port is not None and not 1 <= self.port <= 65535:
            raise ValueError(f"port is {self.port}; it must be 1 to 65535")
        if not 1 <= self.num_threads <= 1024:
            raise ValueError(f"num_threads is {self.num_threads}; it must be 1 to 1024")


def describe(options: Options) -> DeviceDescription:
    """The board, without connecting to it: what its runtime offers is unknown until it refuses a program."""
    missing = () if shutil.which(options.ssh) else (Missing(what=options.ssh, how="apt-get install openssh-client"),)
    return DeviceDescription(
        title=f"ExecuTorch's wheel on {_destination(options)} by ssh",
        provenance=Provenance.MEASURED,
        gives=("latency", "profile", "memory"),
        lock=f"linux_ssh {options.host}:{options.port}",
        missing=missing,
    )


def execute(options: Options, job: Job) -> Execution:
    """Execute the job over one connection.

    Raises:
        DeviceError: the board cannot be reached, lacks ExecuTorch, or its runner failed.
    """
    source, what = wheel.RUNNER.read_bytes(), f"the board {_destination(options)}"
    start = f"import sys; exec(compile(sys.stdin.buffer.read({len(source)}), 'wheel_runner.py', 'exec'))"
    command = [*_connection(options), shlex.join([options.python, "-c", start])]
    try:
        request = source + wheel.request(job, options.num_threads)
        answer, log = converse(command, request, timeout_s=job.timeout_s, what=what)
    except DeviceError as error:
        raise DeviceError(f"{error}{_hint(str(error), options)}", error.log) from error
    return wheel.execution(answer, log, what)


def _connection(options: Options) -> list[str]:
    command = [options.ssh, "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5"]
    for option in options.ssh_options:
        command += ["-o", option]
    if options.port is not None:
        command += ["-p", str(options.port)]
    if options.identity_file is not None:
        command += ["-i", str(Path(options.identity_file).expanduser())]
    return [*command, "--", _destination(options)]


def _destination(options: Options) -> str:
    return options.host if options.user is None else f"{options.user}@{options.host}"


def _hint(message: str, options: Options) -> str:
    if _UNREACHABLE in message:
        return f"\nTry `{shlex.join([*_connection(options), 'true'])}`"
    if "ModuleNotFoundError" in message or "not found" in message:
        return "\nThe board needs Python 3.11 with `pip install executorch==1.5.1`; name it in `device.options.python`"
    return ""
