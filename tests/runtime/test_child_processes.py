"""How child processes are ended, and how their ends are named."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from lowerdeck.runtime.child_processes import exit_name, kill_group


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
