"""Marks for cases of parametrized tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def quick_first(cases: Iterable[Any], quick: int = 1) -> list[Any]:
    """`cases`, of which `make test` runs the first `quick`, and `make test-all` the others, too."""
    return [case if index < quick else _slow(case) for index, case in enumerate(cases)]


def _slow(case: Any) -> Any:
    if isinstance(case, type(pytest.param())):
        return pytest.param(*case.values, marks=[*case.marks, pytest.mark.slow], id=case.id)
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
