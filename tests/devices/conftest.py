"""What the tests of stand-ins share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lowerdeck.contracts.devices import DeviceError
from tests.devices.programs import self_test_job

CheckFailure = Callable[[ModuleType, Any, str, str], None]


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    """An empty folder beside the stand-ins."""
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def check_failure(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> CheckFailure:
    """(device, options, fault of the stand-in, message): the device reports that fault."""

    def check(device: ModuleType, options: Any, fault: str, message: str) -> None:
        monkeypatch.setenv("STAND_IN_FAULT", fault)
        with pytest.raises(DeviceError, match=message):
            device.execute(options, self_test_job(workdir, timeout_s=2.0))

    return check
