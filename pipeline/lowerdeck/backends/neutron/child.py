"""The child process in which a converter does one job: started, limited in time, ended with all that it started."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowerdeck.backends.neutron import convert_worker

LOG_NAME = "converter.log"
OUTPUT_NAME = "output"
"""Folder below that of the job, in which the converter runs: what it leaves in the current folder is kept there."""
_LOG_TAIL_LINES = 30
# Another environment has its own; these would put modules of this one into its way.
_ENVIRONMENT_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")


@dataclass(frozen=True)
class Success:
    """What the worker reported."""

    result: dict[str, Any]


@dataclass(frozen=True)
class Failure:
    """How the job failed."""

    reason: str
    """How the process ended, or what the converter reported; continues a sentence about the converter."""
    kind: str | None = None
    """Of convert_worker.ERROR_KINDS, where the converter reported it."""


def command(python: str, folder: Path) -> list[str]:
    """The command of the child process for the job in `folder`."""
    # faulthandler: a crash in native code leaves the Python stack in the log. -u: so does what was printed before it.
    return [python, "-u", "-X", "faulthandler", str(Path(convert_worker.__file__).resolve()), str(folder)]


def shell_command(python: str, folder: Path) -> str:
    """What a person types to do the job in `folder` again."""
    unset = "".join(f" -u {name}" for name in _ENVIRONMENT_VARIABLES if name in os.environ)
    environment = f"env{unset} " if unset and python != sys.executable else ""
    return f"cd {shlex.quote(str(folder / OUTPUT_NAME))} && {environment}{shlex.join(command(python, folder))}"


def run(python: str, job: dict[str, Any], folder: Path, timeout_s: float) -> Success | Failure:
    """Do `job` in `folder` (absolute): a process group of its own, its output in the log there.

    Raises:
        OSError: `python` cannot be started.
    """
    (folder / OUTPUT_NAME).mkdir(exist_ok=True)
    for stale in ("result.json", "converted.tflite"):
        (folder / stale).unlink(missing_ok=True)
    (folder / "job.json").write_text(json.dumps(job, indent=2, sort_keys=True), encoding="utf-8")
    exit_code = _wait(python, folder, timeout_s)
    if exit_code is None:
        return Failure(f"was ended at its time limit of {timeout_s:g} s")
    result = _read_result(folder)
    if result is None:
        return Failure(_describe_exit(exit_code))
    if not result["ok"]:
        return Failure(f"reports: {result['error']}", result["kind"])
    return Success(result)


def log(folder: Path) -> str:
    """All that the child printed."""
    path = folder / LOG_NAME
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def log_tail(folder: Path) -> str:
    """The end of what the child printed."""
    return "\n".join(log(folder).splitlines()[-_LOG_TAIL_LINES:])


def _wait(python: str, folder: Path, timeout_s: float) -> int | None:
    """Exit code of the child; None when it was killed at the time limit."""
    environment = dict(os.environ)
    if python != sys.executable:
        environment = {name: value for name, value in environment.items() if name not in _ENVIRONMENT_VARIABLES}
    with (folder / LOG_NAME).open("wb") as output:
        process = subprocess.Popen(
            command(python, folder),
            cwd=folder / OUTPUT_NAME,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        # Also on KeyboardInterrupt: in its own session the child does not get the terminal's signal. And also after
        # the child's own end, for what it may have started.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _read_result(folder: Path) -> dict[str, Any] | None:
    try:
        result: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return result


def _describe_exit(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended with exit code {exit_code} and without a result"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = str(-exit_code)
    return f"was ended by signal {name}"
