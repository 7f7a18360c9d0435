"""What programs require of a runtime, derived from their files."""

from __future__ import annotations

import pytest

from lowerdeck.devices.self_test.expected import PROGRAM
from lowerdeck.formats.pte_requirements import requirements


def test_of_the_self_test_program() -> None:
    found = requirements(PROGRAM.read_bytes())
    assert [(use.name, use.num_args, use.dtypes, use.dim_orders) for use in found.operators] == [
        ("aten::add.out", 5, ("float32",), ((0, 1),)),
        ("aten::mul.out", 4, ("float32",), ((0, 1),)),
    ]
    assert (found.delegates, found.schema_identifier, found.input_bytes) == ({}, "ET12", 64)
    assert found.program_bytes == PROGRAM.stat().st_size
    assert sum(found.planned_bytes) >= 128


def test_of_a_damaged_program() -> None:
    with pytest.raises(ValueError, match="ET12"):
        requirements(b"\0" * 100)
