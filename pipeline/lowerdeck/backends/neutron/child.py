"""Runs one converter job in a child process with a time limit, and ends every process that it started."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from lowerdeck.backends.neutron import convert_worker
from lowerdeck.runtime.child_processes import CRASHES, exit_name, kill_group
from lowerdeck.runtime.waiting import use_waiting_time

LOG_NAME = "converter.log"
OUTPUT_NAME = "output"
"""The converter's current folder, below the job's; it keeps the files that the converter writes."""
TIME_LIMIT, KILLED = "time_limit", "killed"
_LOG_TAIL_LINES = 30
# Would make an interpreter of another environment import modules of this one.
_ENVIRONMENT_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")


class FailedError(Exception):
    """A failed job; the message continues a sentence about the converter."""

    def __init__(self, message: str, kind: str | None = None) -> None:
        """Keep the kind: one of convert_worker.ERROR_KINDS where the converter reported it, TIME_LIMIT or KILLED."""
        super().__init__(message)
        self.kind = kind


def command(python: str, folder: Path) -> list[str]:
    """Return the child's command for the job in `folder`."""
    # faulthandler logs the Python stack of a crash in native code; -u logs what was printed before it.
    return [python, "-u", "-X", "faulthandler", str(Path(convert_worker.__file__).resolve()), str(folder)]


def shell_command(python: str, folder: Path) -> str:
    """Return the shell command that repeats the job in `folder`."""
    unset = "".join(f" -u {name}" for name in _ENVIRONMENT_VARIABLES if name in os.environ)
    environment = f"env{unset} " if unset and python != sys.executable else ""
    return f"cd {shlex.quote(str(folder / OUTPUT_NAME))} && {environment}{shlex.join(command(python, folder))}"


def run(python: str, job: dict[str, Any], folder: Path, timeout_s: float) -> dict[str, Any]:
    """Execute `job` in `folder` (absolute) in its own process group; its output goes to the log there.

    Raises:
        OSError: `python` cannot be started.
        FailedError: the job failed.
    """
    (folder / OUTPUT_NAME).mkdir(exist_ok=True)
    result_file = folder / "result.json"
    for stale in (result_file, folder / "converted.tflite"):
        stale.unlink(missing_ok=True)
    (folder / "job.json").write_text(json.dumps(job, indent=2, sort_keys=True), encoding="utf-8")
    exit_code = _wait(python, folder, timeout_s)
    if exit_code is None:
        raise FailedError(f"was ended at its time limit of {timeout_s:g} s", TIME_LIMIT)
    if not result_file.is_file():
        is_killed = exit_code < 0 and -exit_code not in CRASHES
        raise FailedError(_describe_exit(exit_code), KILLED if is_killed else None)
    result: dict[str, Any] = json.loads(result_file.read_text(encoding="utf-8"))
    if not result["ok"]:
        raise FailedError(f"reports: {result['error']}", result["kind"])
    return result


def log(folder: Path) -> str:
    """Return everything that the child printed."""
    path = folder / LOG_NAME
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def log_tail(folder: Path) -> str:
    """Return the last lines that the child printed."""
    return "\n".join(log(folder).splitlines()[-_LOG_TAIL_LINES:])


def _wait(python: str, folder: Path, timeout_s: float) -> int | None:
    """Exit code of the child; None if it exceeded the time limit and was killed."""
    environment = dict(os.environ)
    if python != sys.executable:
        environment = {name: value for name, value in environment.items() if name not in _ENVIRONMENT_VARIABLES}
    end = time.monotonic() + timeout_s
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
        use_waiting_time()
        return process.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None
    finally:
        # Also on KeyboardInterrupt, because the terminal's signal does not reach the child's session.
        kill_group(process)


def _describe_exit(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended with exit code {exit_code} and without a result"
    return f"was ended by signal {exit_name(exit_code).removeprefix('signal ')}"
