"""lowerdeck.fingerprints.imports: what source imports, wherever it stands, and what it only names for type checkers."""

from __future__ import annotations

import pytest

from lowerdeck.fingerprints.imports import imports_of

SOURCE = b'''
"""A docstring that mentions lowerdeck.config.load is no reference."""
from __future__ import annotations
import os.path
from typing import TYPE_CHECKING
import typing
if TYPE_CHECKING:
    from lowerdeck.only import Types
elif typing.TYPE_CHECKING:
    import lowerdeck.also_only_types
else:
    import lowerdeck.at_run_time

def late():
    from lowerdeck.late import thing as other, more
    from . import sibling
    from ..uncle import cousin
    return "worker.py", "lowerdeck.by_name", "no module"
'''


def test_imports_in_functions_count_and_those_for_type_checkers_do_not() -> None:
    found = imports_of(SOURCE, "lowerdeck.package")
    assert set(found.names) == {
        ("__future__", "annotations"),
        ("os.path", ""),
        ("typing", "TYPE_CHECKING"),
        ("typing", ""),
        ("lowerdeck.at_run_time", ""),
        ("lowerdeck.late", "thing"),
        ("lowerdeck.late", "more"),
        ("lowerdeck.package", "sibling"),
        ("lowerdeck.uncle", "cousin"),
    }


def test_texts_that_may_name_code_are_found_and_prose_is_not() -> None:
    assert set(imports_of(SOURCE, "lowerdeck.package").strings) == {"worker.py", "lowerdeck.by_name"}


@pytest.mark.parametrize(("length", "counts"), [(99, True), (100, False)])
def test_a_long_text_names_no_code(length: int, counts: bool) -> None:
    text = f"{'a' * (length - 3)}.py"
    assert imports_of(f"x = '{text}'".encode(), "lowerdeck").strings == ((text,) if counts else ())


def test_source_that_is_no_python_is_refused() -> None:
    with pytest.raises(SyntaxError):
        imports_of(b"import (", "lowerdeck")
