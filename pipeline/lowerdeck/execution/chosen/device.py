"""The device that the configuration chooses."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lowerdeck.execution.resolved_config import section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowerdeck.config.schema import DeviceConfig
    from lowerdeck.steps.measurement import Place, Settings


def chosen_device() -> DeviceConfig | None:
    """The section `device`; None where it names none."""
    from lowerdeck.config.schema import DeviceConfig

    device = section(DeviceConfig)
    return None if device.kind is None else device


def samples(device: DeviceConfig, evaluated: list[int]) -> list[int]:
    """The samples that the device executes: some of those that `evaluated` lists, at even distances."""
    count = min(len(evaluated), device.num_samples)
    return [evaluated[position * len(evaluated) // count] for position in range(count)]


def place_and_settings(device: DeviceConfig, kernel_definitions: Sequence[str]) -> tuple[Place, Settings]:
    """The device, and how the configuration wants it to execute a program that needs kernels built so."""
    from lowerdeck import devices
    from lowerdeck.steps.measurement import Place

    assert device.kind is not None
    module = devices.source(device.kind)
    boards = {name: module.Options(**options) for name, options in device.boards.items()}
    options = None if boards else module.Options(**device.options)
    settings = replace(settings_of(device), kernel_definitions=kernel_definitions)
    return Place(name=device.name, module=module, options=options, boards=boards), settings


def settings_of(device: DeviceConfig) -> Settings:
    """How the configuration wants a device to execute."""
    from pathlib import Path

    from lowerdeck.steps.measurement import Settings

    return Settings(
        warm_up=device.warm_up,
        repetitions=device.repetitions,
        profile=device.profile,
        timeout_s=device.timeout_s,
        max_wait_s=device.max_wait_s,
        lock_folder=None if device.lock_folder is None else Path(device.lock_folder).expanduser(),
    )
