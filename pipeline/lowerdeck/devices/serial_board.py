"""A board at a serial port, whose firmware has the C source lowerdeck_board.c of the firmware bundle.

Both sides send lines of text. Content is sent as lines `:HEX` of 64 bytes, each acknowledged by the board with `+`:

    LD1 HELLO                        -> LD1 BOARD NAME PROGRAM_CAPACITY INPUTS_CAPACITY SHA256   (- without a program)
    LD1 PROGRAM BYTES, content       -> LD1 OK SHA256
    LD1 INPUTS BYTES, content        -> LD1 OK SHA256
    LD1 RUN ID REPETITIONS           -> LD1 TICKS ID TICKS TICKS_PER_S (one a repetition), LD1 OUTPUT ID BYTES SHA256,
                                        content (not acknowledged), LD1 DONE ID SHA256 of the program

`LD1 ERROR WHAT NUMBER` ends any of them. All other lines are the board's log.
"""

from __future__ import annotations

import hashlib
import importlib.util
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from lowerdeck.contracts.devices import (
    DeviceDescription,
    DeviceError,
    DeviceTensor,
    Execution,
    Job,
    Missing,
    Provenance,
)
from lowerdeck.devices.tensors import split_outputs

SOURCES = tuple(
    Path(__file__).parent / "sources" / name
    for name in ("lowerdeck_board.c", "lowerdeck_board.h", "lowerdeck_sha256.h")
)
"""What firmware compiles to be such a board; the firmware bundle has them."""
_LINE_BYTES = 64
_MAX_LINE_CHARACTERS = 4096
_ERRORS = {
    "program_capacity": "the program is larger than the board's room for it, {number:,} bytes",
    "inputs_capacity": "the inputs are larger than the board's room for them, {number:,} bytes",
    "load": "ExecuTorch on the board does not load the program: error {number}",
    "execute": "ExecuTorch on the board failed to execute the program: error {number}",
    "line": "a line was lost or damaged on its way to the board; lower device.options.baudrate",
    "program": "the board has no program",
}
"""What `LD1 ERROR WHAT NUMBER` means."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Fields of `device.options`."""

    port: str = "/dev/ttyACM0"
    """The port, e.g. /dev/ttyUSB0, or an address of pyserial, e.g. socket://192.168.1.7:4000."""
    baudrate: int = 115200
    """Bits per second."""
    emulated: bool = False
    """Whether an emulator is at the port: its outputs are real, its time is not."""

    def __post_init__(self) -> None:
        if self.baudrate <= 0:
            raise ValueError(f"baudrate is {self.baudrate}; it must be positive")


def describe(options: Options) -> DeviceDescription:
    """The board, without opening its port."""
    missing = []
    if importlib.util.find_spec("serial") is None:
        missing.append(Missing(what="pyserial", how="pip install pyserial, or lowerdeck[serial]"))
    if options.port.startswith("/") and not Path(options.port).exists():
        how = "plug the board in; device.options.port names its port, which `ls /dev/serial/by-id` lists"
        missing.append(Missing(what=f"the serial port {options.port}", how=how))
    return DeviceDescription(
        title=f"a board at the serial port {options.port}",
        provenance=Provenance.EMULATED if options.emulated else Provenance.MEASURED,
        gives=() if options.emulated else ("latency",),
        lock=f"serial_board {options.port}",
        missing=tuple(missing),
    )


def execute(options: Options, job: Job) -> Execution:
    """Execute the job; the program is sent only where the board has another one.

    Raises:
        DeviceError: the port cannot be opened, the board does not answer in time, or answers something else.
    """
    if lacking := describe(options).missing:
        raise DeviceError("; ".join(f"{part.what} is missing: {part.how}" for part in lacking))
    import serial

    program = job.program.read_bytes()
    try:
        with serial.serial_for_url(options.port, baudrate=options.baudrate, timeout=0.1) as port:
            board = _Board(port=port, deadline=time.monotonic() + job.timeout_s)
            return board.execute(job, program)
    except serial.SerialException as error:
        raise DeviceError(f"the serial port {options.port} cannot be used: {error}") from error


@dataclass(kw_only=True)
class _Board:
    """One conversation with a board."""

    port: Any
    deadline: float
    received: bytes = b""
    log: list[str] = field(default_factory=list)

    def execute(self, job: Job, program: bytes) -> Execution:
        self.port.reset_input_buffer()
        self._send("LD1 HELLO")
        name, _, _, loaded = self._fields(self._answer("BOARD"), 4)
        digest = hashlib.sha256(program).hexdigest()
        if loaded != digest or job.keeps_state:
            self._give("PROGRAM", program)
        outputs, latencies_ms = [], list[float]()
        for number, sample in enumerate(job.samples):
            if number and job.keeps_state:
                self._give("PROGRAM", program)
            self._give("INPUTS", b"".join(tensor.content for tensor in sample))
            repetitions = job.warm_up + job.repetitions if number == 0 and job.repetitions else 0
            content, times = self._run(repetitions, digest)
            outputs.append(self._tensors(content, job))
            latencies_ms += times[job.warm_up :]
        return Execution(
            outputs=outputs,
            latencies_ms=latencies_ms,
            program_sha256=digest,
            log="\n".join(self.log),
            notes=(f"executed by {name}",),
        )

    def _tensors(self, content: bytes, job: Job) -> list[DeviceTensor]:
        return split_outputs(content, job.outputs, "the board", "\n".join(self.log))

    def _run(self, repetitions: int, digest: str) -> tuple[bytes, list[float]]:
        """Outputs, and the milliseconds of every repetition."""
        identity, times = str(secrets.randbelow(1 << 31)), list[float]()
        self._send(f"LD1 RUN {identity} {repetitions}")
        while (found := self._answer("TICKS", "OUTPUT"))[0] == "TICKS":
            of, ticks, ticks_per_s = self._fields(found, 3)
            if of == identity and ticks.isdigit() and int(ticks_per_s) > 0:
                times.append(1000 * int(ticks) / int(ticks_per_s))
        of, size, wanted = self._fields(found, 3)
        content = b""
        while size.isdigit() and len(content) < int(size):
            line = self._line()
            try:
                content += bytes.fromhex(line.removeprefix(":")) if line.startswith(":") else b""
            except ValueError:
                self._fail(f"the board sent {line[:40]!r} as outputs")
        done, executed = self._fields(self._answer("DONE"), 2)
        if hashlib.sha256(content).hexdigest() != wanted or {of, done} != {identity}:
            self._fail("outputs were damaged on their way, or are those of another execution")
        if executed != digest:
            self._fail(f"the board executed the program {executed[:12]}, {digest[:12]} was sent")
        return content, times

    def _give(self, what: str, content: bytes) -> None:
        """Send a program or inputs, and check that they arrived."""
        self._send(f"LD1 {what} {len(content)}")
        for place in range(0, len(content), _LINE_BYTES):
            self._send(":" + content[place : place + _LINE_BYTES].hex())
            self._acknowledged()
        (digest,) = self._fields(self._answer("OK"), 1)
        if digest != hashlib.sha256(content).hexdigest():
            self._fail(f"the board received other {what.lower()} than were sent; lower device.options.baudrate")

    def _acknowledged(self) -> None:
        while (line := self._line()) != "+":
            self._noted(line)

    def _answer(self, *kinds: str) -> list[str]:
        """The words of the next answer of one of these kinds, without `LD1`."""
        while True:
            words = (line := self._line()).split(" ")
            if words[0] == "LD1" and words[1:] and words[1] in kinds:
                return words[1:]
            self._noted(line)

    def _noted(self, line: str) -> None:
        """Keep a line of the log; an error ends the conversation."""
        words = line.split(" ")
        if words[:2] == ["LD1", "ERROR"]:
            number = int(words[3]) if len(words) > 3 and words[3].isdigit() else 0
            known = _ERRORS.get(words[2] if len(words) > 2 else "")
            self._fail(known.format(number=number) if known else f"the board reports {' '.join(words[2:])[:80]!r}")
        self.log.append(line)

    def _fields(self, words: list[str], count: int) -> list[str]:
        if len(words) != count + 1:
            self._fail(f"the board answered {' '.join(words)[:80]!r}")
        return words[1:]

    def _send(self, line: str) -> None:
        self.port.write(line.encode() + b"\n")

    def _line(self) -> str:
        """The next line of the board."""
        while b"\n" not in self.received:
            if time.monotonic() > self.deadline:
                self._fail("the board did not answer within `device.timeout_s`")
            if len(self.received) > _MAX_LINE_CHARACTERS:
                self._fail("the board sends something else than lines")
            self.received += self.port.read(max(1, self.port.in_waiting))
        line, _, self.received = self.received.partition(b"\n")
        return line.decode("ascii", "replace").rstrip("\r")

    def _fail(self, message: str) -> NoReturn:
        raise DeviceError(message, "\n".join([*self.log, self.received.decode("ascii", "replace")]))
