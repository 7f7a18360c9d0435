"""ExecuTorch's runtime in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lowerdeck.contracts.devices import DeviceError
from lowerdeck.devices import host_native, wheel
from lowerdeck.formats.etdump import read_etdump
from tests.devices.programs import firsts, floats, program_with_state, self_test_job


def test_it_executes_times_and_profiles(tmp_path: Path) -> None:
    job = self_test_job(tmp_path, warm_up=2, repetitions=7, profile=True)
    executed = host_native.execute(host_native.Options(), job)
    assert firsts(executed, 3) == [[2, 6, 6], [20, 0, 0]]
    assert len(executed.latencies_ms) == 7
    assert all(0 < latency < 10_000 for latency in executed.latencies_ms)
    assert executed.metrics["peak_process_memory_bytes"] >= 0
    assert executed.etdump is not None
    times = read_etdump(executed.etdump)
    assert [(entry.chain, entry.instruction, entry.name) for entry in times] == [(0, 0, ""), (0, 1, "")]
    assert all(len(entry.ticks) == 7 for entry in times), "one per repetition"


@pytest.mark.parametrize(("is_stream", "expected"), [(False, [[1], [4]]), (True, [[1], [5]])])
def test_state_lasts_over_a_stream_alone(tmp_path: Path, is_stream: bool, expected: list[list[float]]) -> None:
    program = program_with_state(tmp_path / "sum.pte")
    job = self_test_job(tmp_path, program, keeps_state=True, is_stream=is_stream)
    assert firsts(host_native.execute(host_native.Options(), job), 1) == expected


def test_nothing_is_timed_where_nothing_is_asked_for(tmp_path: Path) -> None:
    executed = host_native.execute(host_native.Options(), self_test_job(tmp_path))
    assert (list(executed.latencies_ms), executed.etdump) == ([], None)


def test_what_the_runtime_refuses_is_an_error_with_its_words(tmp_path: Path) -> None:
    program = tmp_path / "damaged.pte"
    program.write_bytes(b"\0" * 64)
    with pytest.raises(DeviceError, match=r"(?s)ExecuTorch's runtime on this machine ended with .*it wrote"):
        host_native.execute(host_native.Options(), self_test_job(tmp_path, program))


def test_a_process_that_exceeds_its_time_is_ended(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"did not finish within 0.2 s"):
        host_native.execute(host_native.Options(), self_test_job(tmp_path, timeout_s=0.2))


@pytest.mark.parametrize("num_threads", [0, 1025])
def test_numbers_of_threads_are_bounded(num_threads: int) -> None:
    with pytest.raises(ValueError, match=f"num_threads is {num_threads}; it must be 1 to 1024"):
        host_native.Options(num_threads=num_threads)


def head(**changes: object) -> bytes:
    described = {"dtype": "float32", "shape": [2], "bytes": 8}
    values = {
        "outputs": [[described]],
        "latencies_ns": [1000],
        "metrics": {},
        "etdump_bytes": 0,
        "runtime": "x",
        "program_sha256": "ab" * 32,
    } | changes
    return json.dumps(values).encode() + b"\n"


def test_an_answer_becomes_outputs() -> None:
    executed = wheel.execution(head(etdump_bytes=2) + b"\1" * 8 + b"ET", "log", "board")
    assert executed.outputs[0][0].content == b"\1" * 8
    assert (executed.latencies_ms, executed.etdump, executed.log) == ([0.001], b"ET", "log")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"Segmentation fault\n",
        head() + b"\1" * 7,
        head() + b"\1" * 9,
        head(outputs=[[{"dtype": "float32", "shape": [2], "bytes": -1}]]),
        head(latencies_ns=["soon"]) + b"\1" * 8,
        head(metrics=None) + b"\1" * 8,
        b"[]\n",
        b"\xff\n",
    ],
)
def test_anything_else_is_an_error_of_the_device(answer: bytes) -> None:
    with pytest.raises(DeviceError, match="board answered something else than outputs"):
        wheel.execution(answer, "", "board")


def test_a_request_holds_program_and_inputs(tmp_path: Path) -> None:
    program = tmp_path / "p.pte"
    program.write_bytes(b"PTE")
    line, _, rest = wheel.request(self_test_job(tmp_path, program, samples=[[floats(1)]]), 3).partition(b"\n")
    assert json.loads(line)["num_threads"] == 3
    assert rest == b"PTE" + floats(1).content
