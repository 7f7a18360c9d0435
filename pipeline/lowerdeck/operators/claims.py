"""Documented claims about the operators of a backend: claims/BACKEND.yaml, as data."""

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
    """Names of `precisions.PRECISIONS` in which the operator is said to be supported."""
    constraints: Mapping[str, str] = field(default_factory=dict)
    """Its constraints, by a short name."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """One list of operators in one document."""

    source: str
    """The document."""
    claims_delegation: bool = True
    """Whether it lists what is delegated; otherwise what is quantized."""
    everywhere: Mapping[str, str] = field(default_factory=dict)
    """What is claimed for every operator, by a short name."""
    operators: Mapping[str, Claim] = field(default_factory=dict)
    """Rows by the operator's name in the document."""


def read(backend: str) -> dict[str, Table]:
    """The tables about a backend by their names; empty where no document lists operators."""
    stored: Any = yaml.safe_load((files(__package__) / "claims" / f"{backend}.yaml").read_text(encoding="utf-8"))
    return TypeAdapter(dict[str, Table]).validate_python(stored or {})
