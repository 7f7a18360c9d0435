"""A board at a serial port: its C source behind a pseudo-terminal and on an emulated Cortex-M3; boards that fail."""

from __future__ import annotations

import dataclasses
import os
import pty
import re
import shutil
import subprocess
import threading
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from lowerdeck.contracts.devices import DeviceError, OutputSpec, Provenance
from lowerdeck.devices import serial_board
from lowerdeck.devices.self_test.expected import PROGRAM
from lowerdeck.fingerprints.digests import file_digest
from tests.devices.programs import firsts, self_test_job

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "pipeline" / "lowerdeck" / "devices" / "sources"
C_SOURCES = [str(path) for path in serial_board.SOURCES if path.suffix == ".c"]
CROSS = "arm-none-eabi-gcc"


@pytest.fixture(scope="module")
def board_on_host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("apt-get install gcc")
    made = tmp_path_factory.mktemp("board") / "board"
    flags = ["-std=c99", "-D_POSIX_C_SOURCE=199309L", "-O1", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{SOURCES}"]
    sources = [str(HERE / "board_on_host.c"), *C_SOURCES]
    subprocess.run(["gcc", *flags, *sources, "-o", str(made)], check=True)
    return made


@contextmanager
def behind_a_terminal(board: Path, *arguments: str) -> Iterator[serial_board.Options]:
    """The board behind a pseudo-terminal."""
    ours, theirs = pty.openpty()
    tty.setraw(ours)
    tty.setraw(theirs)
    process = subprocess.Popen([str(board), *arguments], stdin=ours, stdout=ours, stderr=subprocess.DEVNULL)
    try:
        yield serial_board.Options(port=os.ttyname(theirs))
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


@pytest.fixture
def start(board_on_host: Path) -> Iterator[Callable[..., serial_board.Options]]:
    with ExitStack() as stack:
        yield lambda *arguments: stack.enter_context(behind_a_terminal(board_on_host, *arguments))


def test_it_executes_times_and_keeps_its_program(start: Callable[..., serial_board.Options], tmp_path: Path) -> None:
    options = start()
    job = self_test_job(tmp_path, warm_up=2, repetitions=5, timeout_s=30.0)
    executed = serial_board.execute(options, job)
    assert firsts(executed, 3) == [[2, 6, 6], [20, 0, 0]]
    assert len(executed.latencies_ms) == 5
    assert all(0 < latency < 1000 for latency in executed.latencies_ms)
    assert executed.program_sha256 == file_digest(job.program)
    assert executed.notes == ("executed by board_on_host",)
    assert "log: execution 1" in executed.log
    begin = time.monotonic()
    assert firsts(serial_board.execute(options, self_test_job(tmp_path)), 1) == [[2], [20]]
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("error", "ExecuTorch on the board failed to execute the program: error 18"),
        ("short", "the board returned 8 bytes, the program's outputs have 64"),
        ("nonsense", "outputs were damaged on their way, or are those of another execution"),
        ("hangs", "the board did not answer within `device.timeout_s`"),
        pytest.param("dies", "the board did not answer within|cannot be used", marks=pytest.mark.slow),
    ],
)
def test_boards_that_fail_keep_their_log(
    start: Callable[..., serial_board.Options], tmp_path: Path, fault: str, message: str
) -> None:
    with pytest.raises(DeviceError, match=message) as raised:
        serial_board.execute(start(fault), self_test_job(tmp_path, timeout_s=3.0))
    assert "log: " in raised.value.log or fault in ("dies", "hangs", "nonsense")


@pytest.mark.parametrize("fault", ["loses", "damages"])
def test_lines_that_a_port_loses_or_damages_are_sent_again(
    start: Callable[..., serial_board.Options], tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serial_board, "_ACK_S", 0.3)
    executed = serial_board.execute(start(fault), self_test_job(tmp_path, timeout_s=30.0))
    assert firsts(executed, 3) == [[2, 6, 6], [20, 0, 0]]


_PROGRAM_LINES = 1 + -(-PROGRAM.stat().st_size // 64)


@pytest.mark.parametrize("fault", ["late", "damaged"])
@pytest.mark.parametrize("number", [0, 3, _PROGRAM_LINES - 1, _PROGRAM_LINES, _PROGRAM_LINES + 1])
def test_an_acknowledgement_that_is_late_or_damaged(
    start: Callable[..., serial_board.Options], tmp_path: Path, fault: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The board refused the last line that was sent again, and the measurement ended."""
    monkeypatch.setattr(serial_board, "_ACK_S", 0.3)
    executed = serial_board.execute(start(fault, str(number)), self_test_job(tmp_path, timeout_s=30.0))
    assert firsts(executed, 3) == [[2, 6, 6], [20, 0, 0]]


def test_a_line_that_is_slow_needs_more_time(start: Callable[..., serial_board.Options], tmp_path: Path) -> None:
    """The advice was to lower the baudrate."""
    with pytest.raises(
        DeviceError, match=r"has only [\d,]+ of [\d,]+ bytes of the program after `device.timeout_s`; rais"
    ):
        serial_board.execute(start("slow"), self_test_job(tmp_path, timeout_s=1.0))


def test_a_port_that_takes_nothing_more(tmp_path: Path) -> None:
    """A board that hangs let the host wait without end."""
    ours, theirs = pty.openpty()
    tty.setraw(ours)
    tty.setraw(theirs)
    os.set_blocking(theirs, False)
    for _ in range(10):
        with suppress(BlockingIOError):
            while True:
                os.write(theirs, b"\n")
        time.sleep(0.02)  # the kernel moves what was written into another buffer
    begin = time.monotonic()
    try:
        with pytest.raises(
            DeviceError, match=r"the board at /dev/pts/\d+ takes nothing that is sent; reset or unplug it"
        ):
            serial_board.execute(serial_board.Options(port=os.ttyname(theirs)), self_test_job(tmp_path, timeout_s=3.0))
    finally:
        os.close(ours)
        os.close(theirs)
    assert time.monotonic() - begin < 20


def test_a_board_that_vanishes(tmp_path: Path) -> None:
    """A USB board that is unplugged while the host is busy ended the whole farm with an OSError."""
    for number in range(20):
        ours, theirs = pty.openpty()
        tty.setraw(ours)
        tty.setraw(theirs)
        options = serial_board.Options(port=os.ttyname(theirs))

        def vanish(ours: int = ours, theirs: int = theirs, count: int = 200 + number) -> None:
            os.read(ours, 64)
            os.close(theirs)
            for _ in range(count):
                os.write(ours, b"log: the sensor says 12345\r\n")
            os.close(ours)

        board = threading.Thread(target=vanish)
        board.start()
        with pytest.raises(DeviceError, match="cannot be used"):
            serial_board.execute(options, self_test_job(tmp_path, timeout_s=3.0))
        board.join()


def test_what_earlier_measurements_left_on_the_board(
    start: Callable[..., serial_board.Options], tmp_path: Path
) -> None:
    """The board says that such a line is damaged, and the advice was to lower the baudrate."""
    for left in (b"boot noise", b"LD run id=12 rep", b"\nLD hel", b"LD hello *d2"):
        options = start()
        with Path(options.port).open("wb", buffering=0) as port:
            port.write(left)
        executed = serial_board.execute(options, self_test_job(tmp_path, timeout_s=10.0))
        assert firsts(executed, 3) == [[2, 6, 6], [20, 0, 0]]


def test_an_output_without_elements(start: Callable[..., serial_board.Options], tmp_path: Path) -> None:
    """It has no lines, and was called damaged."""
    job = self_test_job(tmp_path, timeout_s=10.0)
    job = dataclasses.replace(job, outputs=(*job.outputs, OutputSpec(dtype="float32", shape=(1, 0), size_bytes=0)))
    executed = serial_board.execute(start("empty"), job)
    assert firsts(executed, 3) == [[2, 6, 6], [20, 0, 0]]
    assert [outputs[1].content for outputs in executed.outputs] == [b"", b""]


def test_outputs_whose_sizes_vary(start: Callable[..., serial_board.Options], tmp_path: Path) -> None:
    """The board says no sizes; the message had two numbers of bytes and no way out."""
    job = self_test_job(tmp_path, timeout_s=10.0)
    job = dataclasses.replace(job, outputs=tuple(dataclasses.replace(it, is_dynamic=True) for it in job.outputs))
    with pytest.raises(DeviceError, match="sizes vary, which this device does not say; give inputs of the largest"):
        serial_board.execute(start("short"), job)


@pytest.mark.parametrize(
    ("port", "baudrate", "message"),
    [
        ("tcp://192.168.1.7:4000", 115200, "cannot be used at 115,200 bits per second"),
        ("socket://127.0.0.1", 115200, "cannot be used at 115,200 bits per second"),
        (None, 5_000_000_000, "cannot be used at 5,000,000,000 bits per second"),
    ],
)
def test_addresses_and_rates_that_do_not_exist(
    start: Callable[..., serial_board.Options], tmp_path: Path, port: str | None, baudrate: int, message: str
) -> None:
    """They ended in an exception of pyserial or of the operating system."""
    options = serial_board.Options(port=port or start().port, baudrate=baudrate)
    with pytest.raises(DeviceError, match=message):
        serial_board.execute(options, self_test_job(tmp_path))


def test_state_returns_to_the_initial_one_without_another_transfer(
    start: Callable[..., serial_board.Options], tmp_path: Path
) -> None:
    executed = serial_board.execute(start(), self_test_job(tmp_path, keeps_state=True, timeout_s=30.0))
    assert firsts(executed, 1) == [[2], [20]]


@pytest.mark.parametrize(("is_stream", "second"), [(False, 20), (True, 21)])
def test_timed_executions_leave_outputs_of_a_program_with_state_alone(
    start: Callable[..., serial_board.Options], tmp_path: Path, is_stream: bool, second: int
) -> None:
    """Those of the first sample were those of the last timed call, and a stream went on from there."""
    job = self_test_job(tmp_path, warm_up=2, repetitions=5, keeps_state=True, is_stream=is_stream, timeout_s=30.0)
    executed = serial_board.execute(start("counts"), job)
    assert (firsts(executed, 1), len(executed.latencies_ms)) == ([[2], [second]], 5)


def test_state_lasts_over_a_stream_and_no_longer(start: Callable[..., serial_board.Options], tmp_path: Path) -> None:
    """`lowerdeck run --on` dropped it between files; the board keeps a program, with its state, after a job."""
    job, options = self_test_job(tmp_path, keeps_state=True, is_stream=True, timeout_s=30.0), start("counts")
    assert [firsts(serial_board.execute(options, job), 1) for _ in range(2)] == [[[2], [21]]] * 2


def test_a_program_that_is_built_in_is_not_replaced(start: Callable[..., serial_board.Options], tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"has the program 1234567890ab built in and takes no other; flash the firm"):
        serial_board.execute(start("built_in"), self_test_job(tmp_path, timeout_s=10.0))


def test_programs_that_the_board_refuses(start: Callable[..., serial_board.Options], tmp_path: Path) -> None:
    options, program = start(), tmp_path / "program.pte"
    program.write_bytes(bytes(100))
    with pytest.raises(DeviceError, match="does not load the program: error 35"):
        serial_board.execute(options, self_test_job(tmp_path, program, timeout_s=10.0))
    program.write_bytes(bytes(1 << 17))
    with pytest.raises(DeviceError, match="the program is larger than the board's room for it, 65,536 bytes"):
        serial_board.execute(options, self_test_job(tmp_path, program, timeout_s=10.0))
    assert firsts(serial_board.execute(options, self_test_job(tmp_path, timeout_s=10.0)), 1) == [[2], [20]]


def test_a_port_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"the serial port /dev/no-such-port is missing: plug the board in"):
        serial_board.execute(serial_board.Options(port="/dev/no-such-port"), self_test_job(tmp_path))
    with pytest.raises(DeviceError, match=r"the serial port socket://127.0.0.1:1 cannot be used"):
        serial_board.execute(serial_board.Options(port="socket://127.0.0.1:1"), self_test_job(tmp_path))
    with pytest.raises(ValueError, match="baudrate is 0; it must be positive"):
        serial_board.Options(baudrate=0)
    assert serial_board.describe(serial_board.Options()).provenance is Provenance.MEASURED


@pytest.mark.skipif(
    not (shutil.which(CROSS) and shutil.which("qemu-system-arm")),
    reason="apt-get install gcc-arm-none-eabi qemu-system-arm",
)
def test_the_same_source_on_a_cortex_m3(tmp_path: Path) -> None:
    image = tmp_path / "board.elf"
    flags = ["-mcpu=cortex-m3", "-mthumb", "-Os", "-Wall", "-Wextra", "-Werror", "-nostartfiles", f"-I{SOURCES}"]
    sources = [str(HERE / "board_on_qemu.c"), *C_SOURCES]
    linking = ["-T", str(HERE / "board_on_qemu.ld"), "-o", str(image)]
    subprocess.run([CROSS, *flags, *sources, *linking], check=True)
    command = ["qemu-system-arm", "-M", "mps2-an385", "-display", "none", "-monitor", "none", "-serial", "pty"]
    with subprocess.Popen([*command, "-kernel", str(image)], stdout=subprocess.PIPE, text=True) as emulator:
        try:
            assert emulator.stdout is not None
            found = re.search(r"redirected to (\S+)", emulator.stdout.readline())
            assert found is not None
            options = serial_board.Options(port=found[1], emulated=True)
            described = serial_board.describe(options)
            assert (described.provenance, described.gives) == (Provenance.EMULATED, ("state",)), "its time is not real"
            work = tmp_path / "work"
            work.mkdir()
            executed = serial_board.execute(options, self_test_job(work, timeout_s=60.0))
            assert firsts(executed, 3) == [[2, 6, 6], [20, 0, 0]]
            assert executed.notes == ("executed by board_on_qemu",)
        finally:
            emulator.kill()
