"""Child processes in sessions of their own: ended with everything that they started, and how they ended in words."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress


def kill_group(child: subprocess.Popen[bytes]) -> None:
    """End a child that was started in a session of its own, with everything in that session, and wait for it.

    Also after it ended by itself, for processes that it left behind.
    """
    with suppress(ProcessLookupError, PermissionError):  # macOS does not permit to signal a group of zombies
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    for stream in (child.stdin, child.stdout, child.stderr):
        if stream is not None:
            with suppress(BrokenPipeError):
                stream.close()


def exit_name(returncode: int) -> str:
    """E.g. `status 1` or `SIGKILL`."""
    if returncode >= 0:
        return f"status {returncode}"
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"
