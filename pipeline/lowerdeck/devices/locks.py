"""Hardware that one user at a time may use: processes wait for each other, first come, first served."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from lowerdeck.contracts.devices import DeviceError

_POLL_S = 0.05


@contextmanager
def holding(
    locks: Mapping[str, str | None], timeout_s: float, folder: Path | None = None, what: str = "the device"
) -> Iterator[str]:
    """Hold one of several devices of one kind within the block, and yield its name.

    Those that wait form a queue. A device that failed lately (`note_failure`) is taken last.

    Args:
        locks: Name of each device -> its lock; None for one that several may use at once.
        timeout_s: Limit of the wait.
        folder: Where locks are; None for the temporary folder of this machine and user.
        what: For the message.

    Raises:
        DeviceError: others held all of them for `timeout_s`, or locks cannot be made in `folder`.
    """
    place = folder or _default_folder()
    names = sorted(locks, key=lambda name: _failed_at(place, locks[name]))
    if not names:
        raise DeviceError(f"{what} has no board that is not excluded")
    if (shared := next((name for name in names if locks[name] is None), None)) is not None:
        yield shared
        return
    deadline = time.monotonic() + timeout_s
    try:
        place.mkdir(parents=True, exist_ok=True)
        with _ticket(place, " ".join(sorted(map(str, locks.values())))) as is_first:
            held = None
            while held is None:
                held = _free_one(place, locks, names) if is_first() else None
                if held is None and time.monotonic() > deadline:
                    raise DeviceError(
                        f"{what} was in use by others for {timeout_s:g} s; raise `device.max_wait_s`, or measure later"
                    )
                time.sleep(0 if held else _POLL_S)
    except OSError as error:
        raise DeviceError(f"locks of devices cannot be made in {place}: {error.strerror}") from error
    name, lock = held
    with lock:
        yield name


def note_failure(lock: str | None, folder: Path | None = None) -> None:
    """Remember that a device failed just now: others of its kind are preferred."""
    place = folder or _default_folder()
    with suppress(OSError):
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{_digest(lock or '')}.failed").touch()


def _default_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"lowerdeck-{os.getuid()}-devices"


def _free_one(place: Path, locks: Mapping[str, str | None], names: list[str]) -> tuple[str, FileLock] | None:
    for name in names:
        lock = FileLock(place / f"{_digest(locks[name] or '')}.lock", timeout=0)
        with suppress(Timeout):
            lock.acquire()
            return name, lock
    return None


@contextmanager
def _ticket(place: Path, queue: str) -> Iterator[Callable[[], bool]]:
    """A place in the queue; yields a function that returns whether all who came before are served or gone."""
    folder = place / f"{_digest(queue)}.queue"
    folder.mkdir(exist_ok=True)
    mine = folder / f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}"
    with FileLock(mine):
        try:
            yield lambda: all(_is_gone(other) for other in sorted(folder.iterdir()) if other.name < mine.name)
        finally:
            mine.unlink(missing_ok=True)


def _is_gone(ticket: Path) -> bool:
    """Whether the process that drew the ticket has ended; its ticket is removed then."""
    try:
        with FileLock(ticket, timeout=0):
            ticket.unlink(missing_ok=True)
    except Timeout:
        return False
    ticket.unlink(missing_ok=True)
    return True


def _failed_at(place: Path, lock: str | None) -> float:
    with suppress(OSError):
        return (place / f"{_digest(lock or '')}.failed").stat().st_mtime
    return 0.0


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
