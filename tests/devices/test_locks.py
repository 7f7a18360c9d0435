"""Hardware that one user at a time may use."""

from __future__ import annotations

import pytest

from lowerdeck.contracts.devices import DeviceError
from lowerdeck.devices.locks import holding


def test_a_held_device_is_waited_for_and_then_refused() -> None:
    with (
        holding("test board", 1),
        pytest.raises(DeviceError, match=r"the device test board was in use by others for 0.2 s"),
        holding("test board", 0.2),
    ):
        raise AssertionError("two hold the lock")
    with holding("test board", 1), holding("another board", 1), holding(None, 1):
        pass
