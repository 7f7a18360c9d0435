"""The cases of each backend, in a module of its name with `CASES`, `TARGETS` and `installed`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lowerdeck.operators.case import Case
from lowerdeck.operators.measure import BackendArguments


@dataclass(frozen=True, kw_only=True)
class Collection:
    """The cases and targets to measure for one backend."""

    cases: Sequence[Case]
    targets: Sequence[BackendArguments]
    installed: Callable[[], dict[str, frozenset[str]]]
    """Device -> edge operators that the installed version lists as supported."""


def collection_of(backend: str) -> Collection:
    """The collection of `backend`, a folder in pipeline/lowerdeck/backends."""
    module = importlib.import_module(f"{__name__}.{backend}")
    return Collection(cases=module.CASES, targets=module.TARGETS, installed=module.installed)
