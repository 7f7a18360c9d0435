"""How child processes are ended, how their ends are named, and what ends a fork."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lowerdeck.runtime.child_processes import crash_in_fork, exit_name, kill_group
from lowerdeck.runtime.messages import captured_messages


@pytest.mark.parametrize(
    ("returncode", "name"), [(0, "status 0"), (3, "status 3"), (-9, "SIGKILL"), (-250, "signal 250")]
)
def test_ends_are_named(returncode: int, name: str) -> None:
    assert exit_name(returncode) == name


def test_what_a_child_left_behind_is_ended_too() -> None:
    code = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout
    left_behind = Path("/proc", child.stdout.readline().decode().strip(), "stat")
    kill_group(child)
    assert child.returncode is not None
    deadline = time.monotonic() + 20
    while left_behind.exists() and left_behind.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, "it still runs"
        time.sleep(0.05)


def ends_by(number: int) -> None:
    os.write(2, b"Check failed\n")
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    ("work", "crash"),
    [
        (os.abort, "SIGABRT"),
        (lambda: ends_by(signal.SIGSEGV), "SIGSEGV: Check failed"),
        (lambda: ends_by(signal.SIGKILL), None),  # as where memory runs out
        (lambda: int("no number"), None),
        (lambda: None, None),
    ],
)
def test_a_crash_of_a_fork_is_no_other_end(
    work: Callable[[], object], crash: str | None, capfd: pytest.CaptureFixture[str]
) -> None:
    assert crash_in_fork(work, 60) == crash
    assert capfd.readouterr().err == ""


def has_no_memory() -> None:
    """As libstdc++ ends a process, while what a library writes is captured."""
    with captured_messages():
        os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n")
        os.abort()


def handles_it() -> None:
    os.write(2, b"std::bad_alloc; trying a smaller block\n")


def test_a_fork_without_memory_is_no_crash() -> None:
    """A healthy partition was called faulty."""
    with pytest.raises(MemoryError, match="no memory left: std::bad_alloc"):
        crash_in_fork(has_no_memory, 60)
    assert crash_in_fork(handles_it, 60) is None


def test_a_fork_that_does_not_end_is_ended(tmp_path: Path) -> None:
    def wait() -> None:
        (tmp_path / "fork").write_text(str(os.getpid()))
        time.sleep(600)

    with pytest.raises(TimeoutError, match="within 2 s"):
        crash_in_fork(wait, 2)
    assert not Path("/proc", (tmp_path / "fork").read_text()).exists()
