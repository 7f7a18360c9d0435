"""Replaces an attribute of other people's code for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """While open, `owner.name` is `value`; then it is what it was, also after an exception.

    Args:
        owner: Module or class that defines the attribute itself.
        name: Of the attribute.
        value: For a static method of a class a `staticmethod`.
    """
    original = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)
