"""Delegation plans as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import read_json, require_file, sha256, write_json
from lowerdeck.contracts.converter import Converter
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.plan import CompiledLayer, DelegationPlan, PlannedNode, PlannedTensor, Reason, ReasonCode


def write_plan(plan: DelegationPlan, path: Path = paths.PLAN) -> None:
    """Write the delegation plan: that of the program, or the partitioner's (paths.PLANNED)."""
    write_json(path, dataclasses.asdict(plan))


def read_plan(path: Path = paths.PLAN) -> DelegationPlan:
    """The delegation plan that `write_plan` wrote."""
    return parse_plan(require_file(path).read_text(encoding="utf-8"), str(path))


def newest_plan() -> DelegationPlan:
    """The plan of the program, or the partitioner's where convert has not run on it."""
    if paths.PLAN.is_file() and paths.PLANNED.is_file():
        is_current = paths.MANIFEST.is_file() and read_json(paths.MANIFEST).get("planned_sha256") == sha256(
            paths.PLANNED
        )
        return read_plan(paths.PLAN if is_current else paths.PLANNED)
    return read_plan(paths.PLAN if paths.PLAN.is_file() else paths.PLANNED)


def parse_plan(text: str, source: str) -> DelegationPlan:
    """The delegation plan in `text`.

    Args:
        text: Content of a plan.json.
        source: Its origin, for the message.

    Raises:
        LowerdeckError: `text` is not a plan, or was written by another version of the project.
    """
    try:
        stored = json.loads(text)
        converter = Converter(**stored["converter"]) if stored["converter"] is not None else None
        nodes, outputs = tuple(map(_planned_node, stored["nodes"])), tuple(stored["outputs"])
        return DelegationPlan(
            backend=stored["backend"],
            nodes=nodes,
            outputs=outputs,
            fallback=stored.get("fallback"),  # plans of earlier versions have none
            converter=converter,
            layers=tuple(CompiledLayer(**layer) for layer in stored.get("layers", ())),
            mismatches=tuple(stored.get("mismatches", ())),  # plans of earlier versions have none
        )
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise LowerdeckError(
            f"{source} contains no delegation plan of this version ({type(error).__name__}: {error}); "
            "`dvc repro partition` makes one"
        ) from None


def _planned_node(stored: Mapping[str, Any]) -> PlannedNode:
    given = dict(stored)
    for name in ("inputs", "outputs"):
        given[name] = tuple(PlannedTensor(**tensor | {"shape": tuple(tensor["shape"])}) for tensor in given[name])
    for name in ("reason", "delegate_reason"):
        if (reason := given.get(name)) is not None:
            given[name] = Reason(**reason | {"code": ReasonCode(reason["code"])})
    return PlannedNode(**given)
