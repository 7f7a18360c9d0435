"""Target and placement of the firmware bundle."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from lowerdeck.execution.resolved_config import section

if TYPE_CHECKING:
    from lowerdeck.contracts.samples import Dataset
    from lowerdeck.firmware.header import Placement
    from lowerdeck.firmware.metadata import Target
    from lowerdeck.firmware.sample_format import SampleFormat

MAX_TWIN_BYTES = 10 * 2**20
"""Size from which `firmware.twins: auto` leaves host twins out of the bundle."""


def firmware_target() -> Target:
    """The chosen target as the firmware bundle describes it."""
    from lowerdeck.config.schema import TargetConfig
    from lowerdeck.firmware.metadata import Target

    target = section(TargetConfig)
    return Target(
        name=target.name,
        backend=target.backend,
        device=target.device,
        options=target.options,
        memories=target.memories,
        banked_memory_planning=target.banked_memory_planning,
    )


def firmware_placement() -> Placement:
    """Name, alignment and section of the array in the C header."""
    from lowerdeck.config.schema import FirmwareConfig
    from lowerdeck.firmware.header import Placement

    config = section(FirmwareConfig)
    return Placement(array_name=config.array_name, alignment_bytes=config.alignment_bytes, section=config.section)


def sample_format(dataset: Dataset, class_names: tuple[str, ...]) -> SampleFormat:
    """What firmware does before and after the program."""
    from lowerdeck.config.schema import TaskConfig
    from lowerdeck.contracts.samples import described_preprocessing
    from lowerdeck.execution.chosen.task import chosen_task
    from lowerdeck.firmware.sample_format import SampleFormat

    return SampleFormat(
        preprocessing=described_preprocessing(dataset),
        class_names=class_names,
        task=section(TaskConfig).source,
        task_options=dataclasses.asdict(chosen_task().options),
    )


def firmware_twins() -> dict[str, bytes]:
    """The manifest and the host twins for the bundle, by path; none where it goes without them."""
    from lowerdeck.artifacts.conversion import read_companions
    from lowerdeck.config.schema import FirmwareConfig

    chosen = section(FirmwareConfig).twins
    found = {} if chosen == "never" else read_companions()
    return found if chosen == "always" or sum(map(len, found.values())) < MAX_TWIN_BYTES else {}
