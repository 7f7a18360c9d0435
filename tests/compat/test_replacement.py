"""Attributes of other people's code, replaced and restored."""

from __future__ import annotations

import pytest

from lowerdeck.compat.replacement import replaced


class Theirs:
    @staticmethod
    def answer() -> int:
        return 1


class Inheriting(Theirs):
    pass


def test_an_attribute_is_restored_as_it_was_defined() -> None:
    before = vars(Theirs)["answer"]
    with replaced(Theirs, "answer", staticmethod(lambda: 2)):
        assert (Theirs.answer(), Theirs().answer()) == (2, 2)
    assert vars(Theirs)["answer"] is before
    with pytest.raises(ZeroDivisionError), replaced(Theirs, "answer", None):
        1 / 0  # noqa: B018
    assert vars(Theirs)["answer"] is before


def test_what_the_owner_does_not_define_is_refused() -> None:
    with pytest.raises(KeyError), replaced(Inheriting, "answer", None):
        raise AssertionError("not reached")
