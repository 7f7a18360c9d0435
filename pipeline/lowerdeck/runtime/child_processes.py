"""Child processes in sessions of their own, ended with all that they started; forks that try something; their ends."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import IO

from lowerdeck.contracts.errors import full_memory

CRASHES = frozenset({signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV})
"""Signals that end a process because of what it executes; others are sent by someone, or where memory ran out."""
RERUN = "LOWERDECK_RERUN"
"""Variable in the environment of a process that is started again, without it, after one of CRASHES."""


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


def crash_in_fork(work: Callable[[], object], timeout_s: float) -> str | None:
    """How `work` ends its process, a fork of this one, which imports nothing again.

    Args:
        work: Its result and its exceptions are dropped.
        timeout_s: Most seconds that it may take.

    Returns:
        The signal and the reason that was written to standard error, e.g. `SIGABRT: Check failed`. None where the
        process ended by itself, or was ended by someone.

    Raises:
        MemoryError: it had no memory left.
        TimeoutError: it did not end in time.
    """
    import multiprocessing

    with tempfile.TemporaryFile() as messages:
        child = multiprocessing.get_context("fork").Process(target=_attempt, args=(work, messages), daemon=True)
        child.start()
        child.join(timeout_s)
        if child.exitcode is None:
            child.kill()
            child.join()
            raise TimeoutError(f"it did not end within {timeout_s:g} s")
        return crash_of(child.exitcode, messages)


def crash_of(returncode: int, messages: IO[bytes]) -> str | None:
    """How a child process crashed that had `kept_messages` in a file; see `crash_in_fork`."""
    from lowerdeck.runtime.messages import reason

    if returncode == 0:
        return None
    messages.seek(0)
    text = messages.read().decode(errors="replace")
    if full := full_memory(text):
        raise full
    if -returncode not in CRASHES:
        return None
    return ": ".join(filter(None, (exit_name(returncode), reason(text.splitlines()))))


def _attempt(work: Callable[[], object], messages: IO[bytes]) -> None:
    import faulthandler
    import resource

    from lowerdeck.runtime.messages import kept_messages
    from lowerdeck.runtime.parallel_map import prepare_fork

    prepare_fork()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is a result, nothing to debug
    os.environ["PATH"] = ""  # where the TOSA reference model crashes, it starts gdb on itself, which can take forever
    faulthandler.disable()
    with kept_messages(messages), suppress(Exception):
        work()
