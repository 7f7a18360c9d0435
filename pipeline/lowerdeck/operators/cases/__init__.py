"""The cases of each backend: the module of the same name has `CASES`, `TARGETS` and `installed`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lowerdeck.operators.case import Case
from lowerdeck.operators.measure import Target


@dataclass(frozen=True, kw_only=True)
class Collection:
    """The cases and targets that are measured for one backend."""

    cases: Sequence[Case]
    targets: Sequence[Target]
    installed: Callable[[], dict[str, frozenset[str]]]
    """Device -> edge operators that the installed version supports by its own lists."""


def collection_of(backend: str) -> Collection:
    """The collection of `backend`, a folder of pipeline/lowerdeck/backends."""
    module = importlib.import_module(f"{__name__}.{backend}")
    return Collection(cases=module.CASES, targets=module.TARGETS, installed=module.installed)
