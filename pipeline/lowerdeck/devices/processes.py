"""Child processes that talk to devices: with a time limit, killed with everything that they started."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from lowerdeck.contracts.devices import DeviceError
from lowerdeck.runtime.child_processes import exit_name, kill_group

_LOG_LINES = 12


def converse(
    command: Sequence[str],
    request: bytes,
    *,
    timeout_s: float,
    what: str,
    environment: Mapping[str, str] | None = None,
) -> tuple[bytes, str]:
    """Run `command` with `request` as its standard input.

    Args:
        command: Program and arguments.
        request: Its whole standard input.
        timeout_s: Limit after which it and its children are killed.
        what: The device, for messages.
        environment: Variables; None for those of this process.

    Returns:
        Its standard output, and as text what it wrote to standard error.

    Raises:
        DeviceError: it cannot be started, exceeded its time limit, or failed.
    """
    pipe = subprocess.PIPE
    try:
        child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, start_new_session=True)
    except OSError as error:
        raise DeviceError(f"{what}: {command[0]} cannot be started: {error.strerror}") from error
    try:
        answer, errors = child.communicate(request, timeout_s)
    except subprocess.TimeoutExpired as error:
        log = (error.stderr or b"").decode(errors="replace")
        raise DeviceError(
            f"{what} did not finish within {timeout_s:g} s and was stopped; raise `device.timeout_s` if it needs more "
            f"time{_ending(log)}",
            log,
        ) from None
    finally:
        kill_group(child)
    log = errors.decode(errors="replace")
    if child.returncode != 0:
        raise DeviceError(f"{what} ended with {exit_name(child.returncode)}{_ending(log)}", log)
    return answer, log


def _ending(log: str) -> str:
    """The last lines of a log, for a message."""
    lines = [line for line in log.splitlines() if line.strip()][-_LOG_LINES:]
    return "; it wrote:\n  " + "\n  ".join(lines) if lines else ""
