"""Delegation plans as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import require_file, write_json
from lowerdeck.contracts.converter import Converter
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.plan import DelegationPlan, PlannedNode, PlannedTensor, Reason, ReasonCode


def write_plan(plan: DelegationPlan) -> None:
    """Write the delegation plan."""
    write_json(paths.PLAN, dataclasses.asdict(plan))


def read_plan() -> DelegationPlan:
    """The delegation plan that `write_plan` wrote."""
    return parse_plan(require_file(paths.PLAN).read_text(encoding="utf-8"), str(paths.PLAN))


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
        return DelegationPlan(backend=stored["backend"], nodes=nodes, outputs=outputs, converter=converter)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise LowerdeckError(
            f"{source} contains no delegation plan of this version ({type(error).__name__}: {error}); "
            "`dvc repro partition` makes one"
        ) from None


def _planned_node(stored: Mapping[str, Any]) -> PlannedNode:
    given = dict(stored)
    for name in ("inputs", "outputs"):
        given[name] = tuple(PlannedTensor(**tensor | {"shape": tuple(tensor["shape"])}) for tensor in given[name])
    if given["reason"] is not None:
        given["reason"] = Reason(**given["reason"] | {"code": ReasonCode(given["reason"]["code"])})
    return PlannedNode(**given)
