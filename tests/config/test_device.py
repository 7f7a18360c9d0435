"""Devices by the files of conf/device."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowerdeck.config.device import device_config, device_names, opened
from lowerdeck.config.schema import DeviceConfig
from lowerdeck.contracts.errors import ConfigurationError
from tests.project import REPOSITORY

CONF = REPOSITORY / "conf"


def test_overrides_apply_to_the_chosen_device_alone() -> None:
    params = {"device": "host_native", "overrides": {"device": {"repetitions": 3, "options": {"num_threads": 2}}}}
    chosen = device_config("host_native", CONF, params)
    assert (chosen.repetitions, chosen.options) == (3, {"num_threads": 2})
    assert device_config("emulated_cortex_m55", CONF, params).options == {}


def test_names_without_a_project_are_the_kinds(tmp_path: Path) -> None:
    assert {"emulated_cortex_m55", "host_native"} <= set(device_names(tmp_path))
    assert device_config("host_native", tmp_path, {}).kind == "host_native"
    assert "none" not in device_names(CONF)


def test_what_cannot_be_opened() -> None:
    with pytest.raises(ConfigurationError, match="device x has no kind; choose one: "):
        opened(DeviceConfig(name="x"))
    with pytest.raises(ConfigurationError, match=r"device.options.host must be set by you"):
        opened(DeviceConfig(name="x", kind="host_native", options={"host": "???"}))
    with pytest.raises(ConfigurationError, match=r"device.options.num_thread\b"):
        opened(DeviceConfig(name="x", kind="host_native", options={"num_thread": 1}))
    with pytest.raises(ConfigurationError, match="there is no such device"):
        device_config("nothing", CONF, {})


def test_boards_have_their_own_options() -> None:
    farm = DeviceConfig(
        name="farm",
        kind="linux_ssh",
        options={"user": "pi"},
        boards={"one": {"host": "one.local"}, "two": {"host": "two.local", "user": "root"}},
    )
    _, options, boards = opened(farm)
    assert options is None
    assert {name: (board.host, board.user) for name, board in boards.items()} == {
        "one": ("one.local", "pi"),
        "two": ("two.local", "root"),
    }
    with pytest.raises(ConfigurationError, match=r"device\.boards\.two\.prt"):
        opened(DeviceConfig(name="farm", kind="linux_ssh", boards={"two": {"host": "x", "prt": 22}}))
    with pytest.raises(ConfigurationError, match=r"device\.boards\.one\.host must be set by you"):
        opened(DeviceConfig(name="farm", kind="linux_ssh", boards={"one": {"host": "???"}}))
