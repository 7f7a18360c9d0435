"""Ten boards of one kind that die, fill up or talk nonsense: no measurement is lost or given to another file."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lowerdeck.contracts.devices import DeviceDescription, DeviceError, DeviceTensor, Execution, Job, Provenance
from lowerdeck.devices.self_test import expected
from lowerdeck.steps.measure import measure
from lowerdeck.steps.measurement import Measurement, Place, Settings

PROGRAM = expected.PROGRAM.read_bytes()
_BUSY_S = 0.02
NUM_BOARDS, NUM_PROGRAMS, NUM_MEASUREMENTS = 10, 8, 200


@dataclass(frozen=True, kw_only=True)
class Board:
    """Options of the stand-in."""

    number: int


class Farm:
    """Boards that answer x * x + x, the SHA-256 of what they were sent, and as a metric which program it was."""

    def __init__(self, share_of_failures: float, always_fails: tuple[int, ...] = ()) -> None:
        self.lock, self.random = threading.Lock(), random.Random(0)
        self.share, self.always = share_of_failures, always_fails
        self.in_use: set[int] = set()
        self.failures = 0

    def describe(self, options: Board) -> DeviceDescription:
        return DeviceDescription(
            title="a stand-in", provenance=Provenance.MEASURED, gives=(), lock=f"stand-in board {options.number}"
        )

    def execute(self, options: Board, job: Job) -> Execution:
        with self.lock:
            assert options.number not in self.in_use, "two use one board"
            self.in_use.add(options.number)
            fails = options.number in self.always or self.random.random() < self.share
            way, self.failures = self.random.choice(("dies", "fills up", "nonsense", "stale")), self.failures + fails
        time.sleep(_BUSY_S)  # so that all other boards are busy at times, on a machine with other work, too
        try:
            return self._answer(job, way if fails else "")
        finally:
            with self.lock:
                self.in_use.remove(options.number)

    def _answer(self, job: Job, way: str) -> Execution:
        if way == "dies":
            raise DeviceError("the board is gone", "its last words")
        if way == "fills up":
            raise DeviceError("no space left on the board", "its last words")
        program, outputs = job.program.read_bytes(), []
        for (sample,) in job.samples:
            x = np.frombuffer(sample.content, np.float32)
            outputs.append([DeviceTensor(dtype="float32", shape=(1, 16), content=(x * x + x).tobytes())])
        if way == "nonsense":
            outputs = [[DeviceTensor(dtype="float32", shape=(1, 16), content=b"?")]] * len(outputs)
        digest = "0" * 64 if way == "stale" else hashlib.sha256(program).hexdigest()
        return Execution(outputs=outputs, program_sha256=digest, metrics={"trailer": float(program[-1])}, log="fine")


def place(farm: Farm, num_boards: int = NUM_BOARDS) -> Place:
    boards = {f"board {number}": Board(number=number) for number in range(num_boards)}
    return Place(name="farm", module=farm, options=None, boards=boards)  # type: ignore[arg-type]


def programs(folder: Path) -> list[Path]:
    """The self-test program, each with a last byte of its own behind its end, so that all digests differ."""
    made = []
    for number in range(NUM_PROGRAMS):
        made.append(folder / f"{number}.pte")
        made[-1].write_bytes(PROGRAM + bytes(15) + bytes([number]))
    return made


@pytest.mark.slow
def test_200_measurements_on_boards_that_fail_at_random(tmp_path: Path) -> None:
    farm, files = Farm(0.15, always_fails=(3,)), programs(tmp_path)
    settings = Settings(lock_folder=tmp_path / "locks", max_wait_s=300)

    def one(number: int) -> tuple[int, Measurement]:
        sample = (torch.full(expected.SHAPE, float(number)),)
        return number, measure(files[number % NUM_PROGRAMS], [sample], place(farm), settings)

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(one, range(NUM_MEASUREMENTS)))
    assert len(found) == NUM_MEASUREMENTS
    assert farm.failures > 20, "boards did fail"
    for number, measured in found:
        data = files[number % NUM_PROGRAMS].read_bytes()
        assert measured.program_sha256 == hashlib.sha256(data).hexdigest()
        assert [metric.value for metric in measured.metrics] == [float(number % NUM_PROGRAMS)], "of another file"
        assert torch.equal(measured.outputs[0][0], torch.full(expected.SHAPE, float(number * number + number)))
        assert measured.board != "board 3"
    assert {measured.board for _, measured in found} == {f"board {n}" for n in range(NUM_BOARDS)} - {"board 3"}
    assert sum(len(measured.notes) for _, measured in found) == farm.failures, "each failure has a note"


def test_when_all_fail_the_logs_of_all_are_kept(tmp_path: Path) -> None:
    (file, *_) = programs(tmp_path)
    farm = Farm(0.0, always_fails=(0, 1))
    with pytest.raises(DeviceError, match=r"(?s)all 2 boards failed:\nboard \d: .*\nboard \d: ") as raised:
        measure(file, expected.samples(), place(farm, 2), Settings(lock_folder=tmp_path / "locks"))
    assert raised.value.log.count("--- board") == 2


def test_a_program_that_changes_meanwhile_is_measured_as_it_was_read(tmp_path: Path) -> None:
    first, second, *_ = programs(tmp_path)
    file = tmp_path / "changing.pte"
    file.write_bytes(first.read_bytes())
    farm = Farm(0.0)

    def execute(options: Any, job: Job) -> Execution:
        file.write_bytes(second.read_bytes())
        return farm.execute(Board(number=0), job)

    module = SimpleNamespace(describe=farm.describe, execute=execute)
    changing = Place(name="b", module=module, options=Board(number=0))
    found = measure(file, expected.samples(), changing, Settings(lock_folder=tmp_path / "locks"))
    assert found.program_sha256 == hashlib.sha256(first.read_bytes()).hexdigest()
    assert found.metrics[0].value == 0.0
