"""The small network with other options for Ethos-U."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lowerdeck import backends
from lowerdeck.contracts.backends import Backend, Flavor
from lowerdeck.contracts.plan import DelegationPlan
from lowerdeck.steps.convert import Converted, convert
from lowerdeck.steps.partition import partition
from tests.conftest import Lowered

U55, U85 = "ethos_u55_128", "ethos_u85_256"


def with_options(build: Lowered, **options: Any) -> Backend:
    """The backend of `build` with other options."""
    target = build.target
    return backends.create(
        target["backend"],
        device=target["device"],
        options=target["options"] | options,
        flavor=Flavor(name="vela", converter="vela", options={}, timeout_s=60),
    )


def planned(build: Lowered, **options: Any) -> DelegationPlan:
    return partition(build.quantized(), with_options(build, **options)).plan


def converted(build: Lowered, folder: Path, **options: Any) -> Converted:
    """The edge program of `build` converted with options that leave its plan as it is."""
    return convert(build.edge(), build.plan, with_options(build, **options), folder)
