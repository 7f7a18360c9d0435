"""A client of GDB's remote protocol, which QEMU speaks: memory, breakpoints and execution of an emulated machine."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

from lowerdeck.contracts.devices import DeviceError

LINK_REGISTER, _PROGRAM_COUNTER = 14, 15
_TOO_LATE = "the emulator did not finish within `device.timeout_s`"
_CHUNK_BYTES = 1024
"""Bytes of memory per packet; QEMU's packets hold 4096 characters."""


class GdbStub:
    """A connection to a stub at a Unix socket."""

    def __init__(self, address: Path, deadline: float, is_running: Callable[[], bool]) -> None:
        """Connect, waiting until the stub listens.

        Args:
            address: The socket.
            deadline: Value of `time.monotonic()` after which every wait ends.
            is_running: Whether the emulator still runs.

        Raises:
            DeviceError: it ended, or did not listen in time; all methods raise it, too.
        """
        self._deadline, self._received = deadline, b""
        self._socket = socket.socket(socket.AF_UNIX)
        while True:
            try:
                self._socket.settimeout(self._left())
                self._socket.connect(str(address))
                return
            except (FileNotFoundError, ConnectionRefusedError):
                if not is_running():
                    raise DeviceError("the emulator ended before it could be reached") from None
                time.sleep(0.005)
            except TimeoutError:
                raise DeviceError("the emulator cannot be reached within the time limit") from None
            except OSError as error:  # the path of a Unix socket has at most 107 characters
                raise DeviceError(
                    f"the emulator cannot be reached at {address}: {error}; name a folder with a short path in TMPDIR"
                ) from None

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def write(self, address: int, content: bytes) -> None:
        """Write `content` to memory."""
        self._expect_ok(f"M{address:x},{len(content):x}:{content.hex()}")

    def read(self, address: int, size: int) -> bytes:
        """Read `size` bytes of memory."""
        parts = []
        for place in range(address, address + size, _CHUNK_BYTES):
            wanted = min(_CHUNK_BYTES, address + size - place)
            answer = self._ask(f"m{place:x},{wanted:x}")
            part = bytes.fromhex(answer) if len(answer) == 2 * wanted else b""
            if len(part) != wanted:
                raise DeviceError(f"the emulator does not read {wanted} bytes at {place:#x}: {answer!r}")
            parts.append(part)
        return b"".join(parts)

    def set_breakpoint(self, address: int) -> None:
        """Stop execution before the Thumb instruction at `address`."""
        self._expect_ok(f"Z1,{address:x},2")

    def remove_breakpoint(self, address: int) -> None:
        """Remove the breakpoint at `address`."""
        self._expect_ok(f"z1,{address:x},2")

    def resume(self) -> int:
        """Execute until a breakpoint; returns its address, which is that of the next instruction."""
        self._ask("c")
        return self.registers()[_PROGRAM_COUNTER]

    def registers(self) -> tuple[int, ...]:
        """The core registers r0 to r15; r14 is the link register, r15 the address of the next instruction."""
        answer = self._ask("g")
        if len(answer) < 8 * 16:
            raise DeviceError(f"the emulator does not tell its registers: {answer[:40]!r}")
        return struct.unpack("<16I", bytes.fromhex(answer[: 8 * 16]))

    def monitor(self, command: str) -> str:
        """The answer of QEMU's monitor."""
        answer, text = self._ask(f"qRcmd,{command.encode().hex()}"), b""
        while answer.startswith("O") and answer != "OK":
            text += bytes.fromhex(answer[1:])
            answer = self._answer()
        return text.decode(errors="replace")

    def _expect_ok(self, command: str) -> None:
        if (answer := self._ask(command)) != "OK":
            raise DeviceError(f"the emulator refuses {command[:40]!r}: {answer!r}")

    def _ask(self, command: str) -> str:
        packet = command.encode()
        try:
            self._socket.settimeout(self._left())
            self._socket.sendall(b"$" + packet + b"#%02x" % (sum(packet) % 256))
        except TimeoutError:
            raise DeviceError(_TOO_LATE) from None
        except ConnectionError as error:
            raise DeviceError(f"the emulator ended: {error}") from error
        return self._answer()

    def _answer(self) -> str:
        """The next packet, acknowledged."""
        try:
            answer = self._packet()
            self._socket.sendall(b"+")
        except TimeoutError:
            raise DeviceError(_TOO_LATE) from None
        except ConnectionError as error:
            raise DeviceError(f"the emulator ended: {error}") from error
        return answer.decode("ascii", "replace")

    def _packet(self) -> bytes:
        """The next packet; acknowledgements before it are passed over."""
        while True:
            start = self._received.find(b"$")
            end = self._received.find(b"#", start)
            if 0 <= start < end and len(self._received) >= end + 3:
                packet, self._received = self._received[start + 1 : end], self._received[end + 3 :]
                return packet
            self._socket.settimeout(self._left())
            if not (more := self._socket.recv(1 << 16)):
                raise ConnectionError("it closed the connection")
            self._received += more

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left
