"""Hardware that one user at a time may use."""

from __future__ import annotations

import select
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lowerdeck.contracts.devices import DeviceError
from lowerdeck.devices.locks import holding, note_failure

BOARD = {"": "test board"}


def test_a_held_device_is_waited_for_and_then_refused(tmp_path: Path) -> None:
    with (
        holding(BOARD, 1, tmp_path),
        pytest.raises(DeviceError, match=r"the device was in use by others for 0.2 s; raise `device.max_wait_s`"),
        holding(BOARD, 0.2, tmp_path),
    ):
        raise AssertionError("two hold the lock")
    with holding(BOARD, 1, tmp_path), holding({"": "another board"}, 1, tmp_path), holding({"": None}, 1, tmp_path):
        pass
    with holding({"": "board without a folder"}, 1) as name:
        assert name == ""


def test_several_of_a_kind_are_all_used_and_what_failed_comes_last(tmp_path: Path) -> None:
    boards: dict[str, str | None] = {"a": "lock a", "b": "lock b"}
    with holding(boards, 1, tmp_path) as first, holding(boards, 1, tmp_path) as second:
        assert {first, second} == {"a", "b"}
    note_failure("lock a", tmp_path)
    with holding(boards, 1, tmp_path) as preferred:
        assert preferred == "b"


def test_those_who_wait_are_served_in_their_order(tmp_path: Path) -> None:
    served: list[int] = []

    def wait(number: int) -> None:
        with holding(BOARD, 20, tmp_path):
            served.append(number)

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(5)]
    with holding(BOARD, 1, tmp_path):
        for number, thread in enumerate(threads, start=1):
            thread.start()
            while len(list(tmp_path.glob("*.queue/*"))) < number:
                time.sleep(0.005)
    for thread in threads:
        thread.join()
    assert served == list(range(5))


def test_who_is_killed_while_it_holds_or_waits_blocks_nobody(tmp_path: Path) -> None:
    code = "import sys, time; from pathlib import Path; from lowerdeck.devices.locks import holding\n"
    code += "print('waits', flush=True)\n"
    code += "with holding({'': 'test board'}, 60, Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    command = [sys.executable, "-c", code, str(tmp_path)]
    # Without a buffer, in which what `select` waits for could lie already.
    users = [subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) for _ in range(2)]
    outputs = [user.stdout for user in users if user.stdout is not None]
    assert [output.readline() for output in outputs] == [b"waits\n"] * 2
    assert select.select(outputs, [], [], 30)[0], "one of them holds it"
    time.sleep(0.2)
    for user in users:
        user.kill()
        user.wait()
    start = time.monotonic()
    with holding(BOARD, 5, tmp_path):
        assert time.monotonic() - start < 2


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(DeviceError, match=r"locks of devices cannot be made in .*file"),
        holding(BOARD, 1, tmp_path / "file"),
    ):
        pass
