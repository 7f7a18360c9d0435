"""Documented claims about the operators of a backend, from claims/BACKEND.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import yaml
from pydantic import TypeAdapter


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A row of an operator table."""

    precisions: tuple[str, ...]
    """Keys of `precisions.PRECISIONS` in which the operator is documented as supported."""
    constraints: Mapping[str, str] = field(default_factory=dict)
    """Constraints by a short name."""


@dataclass(frozen=True, kw_only=True)
class OperatorTable:
    """One list of operators in one document."""

    source: str
    claims_delegation: bool = True
    """Whether it lists delegated operators, or else quantized ones."""
    everywhere: Mapping[str, str] = field(default_factory=dict)
    """Claims about every operator, by a short name."""
    operators: Mapping[str, Claim] = field(default_factory=dict)
    """Rows by the operator's name in the document."""


def read(backend: str) -> dict[str, OperatorTable]:
    """The tables of a backend by name; empty where no document lists operators."""
    stored: Any = yaml.safe_load((files(__package__) / "claims" / f"{backend}.yaml").read_text(encoding="utf-8"))
    return TypeAdapter(dict[str, OperatorTable]).validate_python(stored or {})
