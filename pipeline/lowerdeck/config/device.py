"""Devices by their options in conf/device, for commands; builds have theirs in the resolved configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lowerdeck import devices
from lowerdeck.config.options import option_file, option_names
from lowerdeck.config.problems import raise_problems, unknown, validate
from lowerdeck.config.schema import DeviceConfig
from lowerdeck.config.yaml_text import read_mapping
from lowerdeck.contracts.devices import DeviceModule
from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.registry import components, import_paths

NONE = "none"


def device_names(conf_dir: Path) -> list[str]:
    """Options of the group `device` that are devices."""
    return [name for name in option_names("device", conf_dir) if name != NONE]


def device_config(name: str, conf_dir: Path, params: Mapping[str, Any]) -> DeviceConfig:
    """The device `name`, with its options as written.

    Args:
        name: An option of the group `device`.
        conf_dir: The folder conf.
        params: The content of params.yaml: its overrides of `device` apply to the device that it chooses.

    Raises:
        ConfigurationError: there is none, or its file is wrong.
    """
    names = device_names(conf_dir)
    if name not in names:
        raise_problems([unknown("device", "there is no such device", name, names)])
    values = read_mapping(option_file("device", name, conf_dir))
    if params.get("device", NONE) == name:
        overrides = (params.get("overrides") or {}).get("device") or {}
        values |= overrides | {"options": {**(values.get("options") or {}), **(overrides.get("options") or {})}}
    config, problems = validate(DeviceConfig, values, "device")
    raise_problems(problems)
    assert isinstance(config, DeviceConfig)
    return config


def opened(device: DeviceConfig, plugins: Sequence[str] = ()) -> tuple[DeviceModule, Any, dict[str, Any]]:
    """The module of a device, its checked options (None where boards have theirs), and those of its boards.

    Raises:
        ConfigurationError: there is no such kind, or an option is wrong or left open.
    """
    if device.kind is None:
        raise ConfigurationError(f"device {device.name} has no kind; choose one: {', '.join(devices.available())}")
    open_keys = [f"{where}.{key}" for where, values in option_sets(device).items() for key in _left_open(values)]
    if open_keys:
        raise ConfigurationError(
            f"{', '.join(open_keys)} must be set by you, in a copy of the file or under `overrides` in params.yaml"
        )
    if components.is_own(device.kind):
        import_paths.check_module(device.kind, "device.kind", "lowerdeck", plugins, devices.DEFINES)
    module = devices.source(device.kind)
    checked = {}
    for where, values in option_sets(device).items():
        checked[where], problems = validate(module.Options, values, where)
        raise_problems(problems)
    if device.boards:
        return module, None, dict(zip(device.boards, checked.values(), strict=True))
    return module, next(iter(checked.values())), {}


def option_sets(device: DeviceConfig) -> dict[str, dict[str, Any]]:
    """The options of every board by the key that says them; `device.options` where there is one device."""
    if not device.boards:
        return {"device.options": device.options}
    return {f"device.boards.{name}": device.options | own for name, own in device.boards.items()}


def _left_open(options: Mapping[str, Any]) -> list[str]:
    return [key for key, value in options.items() if value == "???"]
