"""A board at a serial port: the application of the firmware bundle, or other firmware with its C sources.

docs/line_protocol.md has what both sides say.
"""

from __future__ import annotations

import hashlib
import importlib.util
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from lowerdeck.contracts.devices import (
    DeviceDescription,
    DeviceError,
    Execution,
    Job,
    Missing,
    Provenance,
)
from lowerdeck.devices import lines
from lowerdeck.devices.tensors import split_outputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowerdeck.contracts.devices import DeviceTensor

try:
    from termios import error as _TerminalError
except ImportError:  # Windows
    _TerminalError = OSError  # type: ignore[misc, assignment]

SOURCES = tuple(
    Path(__file__).parent / "sources" / name
    for name in ("line_protocol.c", "line_protocol.h", "lowerdeck_board.c", "lowerdeck_board.h", "lowerdeck_sha256.h")
)
"""What firmware compiles to be such a board; the firmware bundle has them."""
_DATA_BYTES = 64
_ACK_S = 2.0
"""A line of content that is not acknowledged for so long is sent again."""
_MAX_ATTEMPTS = 5
_MAX_LINE_CHARACTERS = 4096
_SILENT = "the board did not answer within `device.timeout_s`"
_ERRORS = {
    "program_room": "the program is larger than the board's room for it, {code:,} bytes",
    "input": "the loaded program has no input {code} of the size that was sent",
    "load": "ExecuTorch on the board does not load the program: error {code}",
    "execute": "ExecuTorch on the board failed to execute the program: error {code}",
    "line": "a line was lost or damaged on its way to the board; lower device.options.baudrate",
    "program": "the board has no program",
    "verb": "the board's firmware does not know what it was asked; build it with the sources of this bundle",
}
"""What `error where=WHERE code=CODE` means."""


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
        gives=("state",) if options.emulated else ("latency", "state"),
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
        with serial.serial_for_url(options.port, baudrate=options.baudrate, timeout=0.1, write_timeout=_ACK_S) as port:
            board = _Board(port=port, deadline=time.monotonic() + job.timeout_s)
            return board.execute(job, program)
    except serial.SerialTimeoutException:
        raise DeviceError(f"the board at {options.port} takes nothing that is sent; reset or unplug it") from None
    except (OSError, ValueError, OverflowError, _TerminalError) as error:  # pyserial lets those of the system through
        rate = f"{options.baudrate:,} bits per second"
        raise DeviceError(f"the serial port {options.port} cannot be used at {rate}: {error}") from error


@dataclass(kw_only=True)
class _Board:
    """One conversation with a board."""

    port: Any
    deadline: float
    received: bytes = b""
    log: list[str] = field(default_factory=list)
    has_repeated: bool = False
    """Whether a line was sent again that the board may have had: it then says that nobody announced the second."""

    def execute(self, job: Job, program: bytes) -> Execution:
        self.port.reset_input_buffer()
        digest = hashlib.sha256(program).hexdigest()
        name = self._prepare(program, digest)
        outputs, latencies_ms = [], list[float]()
        for number, sample in enumerate(job.samples):
            content, _ = self._executed(job, sample, digest, is_first=not (number and job.is_stream))
            outputs.append(split_outputs(content, job.outputs, "the board", "\n".join(self.log)))
        if job.samples and job.repetitions:  # the last one's outputs come back: of a program with state, others
            repetitions = job.warm_up + job.repetitions
            _, times = self._executed(job, job.samples[0], digest, is_first=True, repetitions=repetitions)
            latencies_ms = times[job.warm_up :]
        return Execution(
            outputs=outputs,
            latencies_ms=latencies_ms,
            program_sha256=digest,
            log="\n".join(self.log),
            notes=(f"executed by {name}",),
        )

    def _executed(
        self, job: Job, sample: Sequence[DeviceTensor], digest: str, *, is_first: bool, repetitions: int = 0
    ) -> tuple[bytes, list[float]]:
        """`_run` of one sample; a program with state begins with the initial one where the call is the first."""
        if job.keeps_state and is_first:
            self._send(lines.written("reset"))
            self._answer("ok")
        for index, tensor in enumerate(sample):
            self._give("input", tensor.content, index=index)
        return self._run(repetitions, digest, sum(not output.size_bytes for output in job.outputs))

    def _prepare(self, program: bytes, digest: str) -> str:
        """Have the board load the program; returns the name of its firmware."""
        hello = self._hello()
        if hello.version != lines.VERSION:
            self._fail(f"the board speaks version {hello.version} of the line protocol, not {lines.VERSION}")
        if (loaded := hello.fields.get("program", "-")) != digest:
            if hello.number("program_room") == 0:
                self._fail(
                    f"the board's firmware has the program {loaded[:12]} built in and takes no other; "
                    f"flash the firmware bundle of {digest[:12]}"
                )
            self._give("program", program)
        return hello.fields.get("name", "a board without a name")

    def _hello(self) -> lines.Line:
        """What the board says of itself; all that it says before answers earlier lines, also of another host."""
        hello, self.has_repeated = None, True
        while hello is None and time.monotonic() < self.deadline:
            self._send("\n" + lines.written("hello"))  # the first end of a line ends what was left in the board's UART
            hello = self._heard(min(self.deadline, time.monotonic() + _ACK_S), "hello")
        if hello is None:
            self._fail(_SILENT)
        self.has_repeated = False
        return hello

    def _run(self, repetitions: int, digest: str, num_empty: int) -> tuple[bytes, list[float]]:
        """Outputs one after the other, and the milliseconds of every repetition; empty outputs have no lines."""
        identity, times, parts = str(secrets.randbelow(1 << 31)), list[float](), dict[int, bytes]()
        self._send(lines.written("run", id=identity, repetitions=repetitions))
        while (said := self._answer("time", "output", "done")).verb != "done":
            if said.verb == "time" and said.fields.get("id") == identity:
                if (ticks := said.number("ticks")) is not None and (frequency := said.number("per_second")):
                    times.append(1000 * ticks / frequency)
            elif said.verb == "output" and (index := said.number("index")) is not None:
                have, content = parts.get(index, b""), said.content("data")
                if content is None or said.number("offset") != len(have):
                    self._fail("outputs were damaged on their way, or are those of another execution")
                parts[index] = have + content
        if said.fields.get("id") != identity or said.number("outputs") != len(parts) + num_empty:
            self._fail("outputs were damaged on their way, or are those of another execution")
        if (executed := said.fields.get("program", "-")) != digest:
            self._fail(f"the board executed the program {executed[:12]}, {digest[:12]} was sent")
        return b"".join(parts[index] for index in sorted(parts)), times

    def _give(self, verb: str, content: bytes, **fields: object) -> None:
        """Send a program or an input; lines that are lost or damaged are sent again."""
        opening = lines.written(verb, **fields, bytes=len(content))
        place, attempts = None, 0
        while place != len(content):
            if time.monotonic() > self.deadline:
                sent = f"{place or 0:,} of {len(content):,} bytes of the {verb}"
                self._fail(f"the board has only {sent} after `device.timeout_s`; raise it")
            if attempts == _MAX_ATTEMPTS:
                self._fail(_ERRORS["line"])
            data = content[place or 0 :][:_DATA_BYTES].hex()
            self._send(opening if place is None else lines.written("data", offset=place, data=data))
            said = self._heard(min(self.deadline, time.monotonic() + _ACK_S), "ack", "ok")
            if said and said.verb == "ok":  # the last acknowledgement was lost
                break
            wanted = said.number("offset") if said else None
            attempts = attempts + 1 if wanted in (None, place) else 0
            self.has_repeated |= attempts > 0
            place = place if wanted is None else wanted
        else:
            said = self._answer("ok")
        if self.has_repeated:
            self._hello()
        if verb == "program" and said.fields.get("program") != hashlib.sha256(content).hexdigest():
            self._fail(_ERRORS["line"])

    def _answer(self, *verbs: str) -> lines.Line:
        """The next line with one of these verbs."""
        if (said := self._heard(self.deadline, *verbs)) is None:
            self._fail(_SILENT)
        return said

    def _heard(self, until: float, *verbs: str) -> lines.Line | None:
        """The next line with one of these verbs; errors end the conversation, and other lines are the log."""
        while (text := self._line(until)) is not None:
            said = lines.read(text)
            if said and said.verb in verbs:
                return said
            if said and said.verb == "error":
                self._check_error(said)
            self.log.append(text)
        return None

    def _check_error(self, said: lines.Line) -> None:
        where, code = said.fields.get("where", ""), said.number("code") or 0
        if where == "line" and self.has_repeated:
            return
        known = _ERRORS.get(where)
        self._fail(known.format(code=code) if known else f"the board reports {where[:80]!r}, {code}")

    def _send(self, line: str) -> None:
        self.port.write(line.encode() + b"\n")

    def _line(self, until: float) -> str | None:
        """The next line of the board; None where there is none until then."""
        while b"\n" not in self.received:
            if time.monotonic() > until:
                return None
            if len(self.received) > _MAX_LINE_CHARACTERS:
                self._fail("the board sends something else than lines")
            self.received += self.port.read(max(1, self.port.in_waiting))
        line, _, self.received = self.received.partition(b"\n")
        return line.decode("ascii", "replace").rstrip("\r")

    def _fail(self, message: str) -> NoReturn:
        raise DeviceError(message, "\n".join([*self.log, self.received.decode("ascii", "replace")]))
