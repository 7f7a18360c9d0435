"""Child processes: their answers, and their ends."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from lowerdeck.contracts.devices import DeviceError
from lowerdeck.devices.processes import converse


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_an_answer_and_what_was_written_beside_it() -> None:
    code = "import sys; print('note', file=sys.stderr); sys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])"
    assert converse(python(code), b"abc", timeout_s=60, what="board") == (b"cba", "note\n")


def test_a_failure_shows_the_end_of_the_log() -> None:
    with pytest.raises(DeviceError, match=r"board ended with status 3; it wrote:\n  no memory") as raised:
        converse(
            python("import sys; print('no memory', file=sys.stderr); sys.exit(3)"), b"", timeout_s=60, what="board"
        )
    assert raised.value.log == "no memory\n"


def test_a_crash_is_named_by_its_signal() -> None:
    with pytest.raises(DeviceError, match="board ended with SIGSEGV"):
        converse(python("import os; os.kill(os.getpid(), 11)"), b"", timeout_s=60, what="board")


def test_a_process_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code = (
        "import subprocess, sys, time; child = subprocess.Popen(['sleep', '600']); "
        f"open({str(pid)!r}, 'w').write(str(child.pid)); time.sleep(600)"
    )
    with pytest.raises(DeviceError, match=r"board did not finish within 2 s .*raise `device.timeout_s`"):
        converse(python(code), b"", timeout_s=2, what="board")
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid.read_text()}").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{pid.read_text()}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.05)
    else:
        assert not Path(f"/proc/{pid.read_text()}").exists()


def test_a_command_that_is_missing_is_named() -> None:
    with pytest.raises(DeviceError, match="board: no-such-command cannot be started: No such file"):
        converse(["no-such-command"], b"", timeout_s=1, what="board")
