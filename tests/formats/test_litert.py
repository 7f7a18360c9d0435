"""Names of the LiteRT schema."""

from __future__ import annotations

import pytest
from ai_edge_litert import schema_py_generated as schema

from lowerdeck.formats.litert import BUILTIN_OPERATORS, entry


def test_operator_names_are_those_of_the_schema() -> None:
    values = {name: value for name, value in vars(schema.BuiltinOperator).items() if not name.startswith("_")}
    assert {name: index for index, name in enumerate(BUILTIN_OPERATORS)} == values


def test_an_index_outside_of_the_file_is_damage() -> None:
    with pytest.raises(ValueError, match="refers to tensor 3 and has 2"):
        entry(["a", "b"], 3, "tensor")
    with pytest.raises(ValueError, match="refers to tensor -1 and has 2"):
        entry(["a", "b"], -1, "tensor")
