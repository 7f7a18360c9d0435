"""Hardware that one user at a time may use: processes of one machine wait for each other."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from lowerdeck.contracts.devices import DeviceError


@contextmanager
def holding(lock: str | None, timeout_s: float) -> Iterator[None]:
    """Hold the lock `lock` within the block; None holds nothing.

    Raises:
        DeviceError: others held it for `timeout_s`.
    """
    if lock is None:
        yield
        return
    digest = hashlib.sha256(lock.encode()).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"lowerdeck-{os.getuid()}-device-{digest}.lock"
    try:
        with FileLock(path, timeout=timeout_s):
            yield
    except Timeout:
        raise DeviceError(
            f"the device {lock} was in use by others for {timeout_s:g} s; raise `device.timeout_s`, or measure later"
        ) from None
