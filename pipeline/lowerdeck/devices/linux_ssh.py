"""A Linux board by ssh: Raspberry Pi, i.MX 8 and 93, a server.

One connection carries everything: the program and all samples go in, outputs, times and the ETDump come out. The board
executes them with ExecuTorch's wheel in its Python, whose script travels with the request and leaves nothing behind, or
with a compiled runner, which is sent once and kept in the board's ~/.cache/lowerdeck.
"""

from __future__ import annotations

import dataclasses
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from lowerdeck.contracts.devices import DeviceDescription, DeviceError, Execution, Job, Missing, Provenance
from lowerdeck.devices import native, wheel
from lowerdeck.devices.processes import converse

_UNREACHABLE = "ended with status 255"
"""ssh's own failure, as `converse` states it; other statuses are those of the command on the board."""
_NOT_THERE = 97
"""Status of the command that starts a compiled runner, where the board does not have it yet."""


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
    """Python on the board that has ExecuTorch, e.g. `~/venv/bin/python`."""
    runner: str | None = None
    """Folder on this machine with a compiled runner, as `lowerdeck devices runner` makes it; null for Python."""
    launcher: list[str] = field(default_factory=list)
    """Command on the board that starts Python or the runner, e.g. [taskset, -c, "4"]."""
    emulated: bool = False
    """Whether the board, or its launcher, is an emulator: its outputs are real, its time is not."""
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
    missing = []
    if not shutil.which(options.ssh):
        missing.append(Missing(what=options.ssh, how="apt-get install openssh-client"))
    if options.runner is not None and not (Path(options.runner).expanduser() / native.RUNNER).is_file():
        missing.append(Missing(what=f"the runner in {options.runner}", how="lowerdeck devices runner --help"))
    what = "ExecuTorch's wheel" if options.runner is None else "a compiled runner"
    return DeviceDescription(
        title=f"{what} on {_destination(options)} by ssh",
        provenance=Provenance.EMULATED if options.emulated else Provenance.MEASURED,
        gives=(
            "memory",
            "state",
            *(() if options.emulated else ("latency", "profile")),
            *(("intermediates",) if options.runner is None else ()),
        ),
        lock=f"linux_ssh {options.host}:{options.port}",
        missing=tuple(missing),
    )


def execute(options: Options, job: Job) -> Execution:
    """Execute the job over one connection; a compiled runner that the board does not have yet is sent before.

    Raises:
        DeviceError: the board cannot be reached, lacks ExecuTorch, or its runner failed.
    """
    what = f"the board {_destination(options)}"
    try:
        if options.runner is None:
            answer, log = _by_python(options, job, what)
        else:
            answer, log = _by_runner(options, job, what, Path(options.runner).expanduser())
        executed = wheel.execution(answer, log, what)
    except DeviceError as error:
        raise DeviceError(f"{error}{_hint(str(error), options)}", error.log) from error
    notes = (*executed.notes, f"started by {shlex.join(options.launcher)}") if options.launcher else executed.notes
    return dataclasses.replace(executed, notes=notes)


def _by_python(options: Options, job: Job, what: str) -> tuple[bytes, str]:
    source = wheel.RUNNER.read_bytes()
    start = f"import sys; exec(compile(sys.stdin.buffer.read({len(source)}), 'wheel_runner.py', 'exec'))"
    python = shlex.quote(options.python)
    if options.python.startswith("~/"):  # which the board's shell does not expand within quotes
        python = f'"$HOME"/{shlex.quote(options.python[2:])}'
    started = " ".join([*map(shlex.quote, options.launcher), python, shlex.join(["-c", start])])
    command = [*_connection(options), started]
    return converse(command, source + wheel.request(job, options.num_threads), timeout_s=job.timeout_s, what=what)


def _by_runner(options: Options, job: Job, what: str, runner: Path) -> tuple[bytes, str]:
    name, packed = native.archive(runner)
    folder, launcher = f'"$HOME"/.cache/lowerdeck/{name}', shlex.join(options.launcher)
    # LD_LIBRARY_PATH for launchers that ignore the runner's own search path.
    run = f"[ -x {folder}/runner ] || exit {_NOT_THERE}; LD_LIBRARY_PATH={folder} exec {launcher} {folder}/runner"
    # Moved into place as a whole, so that an interrupted copy is never executed.
    send = (
        f"umask 077; mkdir -p {folder}.$$ && tar xf - -C {folder}.$$ && mv {folder}.$$ {folder} || "
        f"{{ status=$?; rm -rf {folder}.$$; exit $status; }}"
    )
    request = native.request(job, options.num_threads)
    try:
        return converse([*_connection(options), run], request, timeout_s=job.timeout_s, what=what)
    except DeviceError as error:
        if f"ended with status {_NOT_THERE}" not in str(error):
            raise
    converse([*_connection(options), send], packed, timeout_s=job.timeout_s, what=what)
    return converse([*_connection(options), run], request, timeout_s=job.timeout_s, what=what)


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
    if "ModuleNotFoundError" in message or (options.runner is None and "not found" in message):
        return (
            "\nThe board needs Python 3.11 with `pip install executorch==1.5.1`, named in `device.options.python`, or "
            "a compiled runner (lowerdeck devices runner --help)"
        )
    if wheel.NO_OUTPUTS in message:
        return (
            "\nWhere that is a greeting of the board's shell, as from its ~/.bashrc, print it at a terminal alone: "
            "[ -t 1 ] && echo ..."
        )
    if "GLIBC" in message:
        return "\nThe board's C library is older than the compiler's: compile the runner with the board's toolchain"
    return ""
