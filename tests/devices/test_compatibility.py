"""What a runtime lacks for a program is named before the program is sent there."""

from __future__ import annotations

import dataclasses

import pytest

from lowerdeck.contracts.errors import ProgramError
from lowerdeck.contracts.runtime_images import OperatorUse, Requirements
from lowerdeck.devices.compatibility import check_runtime, unmet
from lowerdeck.devices.images import kept_image, wheel_image
from lowerdeck.devices.self_test.expected import PROGRAM
from lowerdeck.formats.pte_requirements import requirements

ARM = kept_image("mlek_sse_300_executorch_26_03")


def use(name: str, num_args: int) -> OperatorUse:
    return OperatorUse(name=name, num_args=num_args, dtypes=("int8",), dim_orders=((0, 1),))


NEEDED = Requirements(
    schema_identifier="ET12",
    operators=[use("aten::add.out", 5)],
    delegates={},
    planned_bytes=[100],
    input_bytes=10,
    program_bytes=1000,
    alignment_bytes=16,
)


def test_the_real_refusals_of_arms_firmware() -> None:
    # Programs of ExecuTorch 1.5.1 for Cortex-M: "Expected 14args received 15", "Missing operator cortex_m::pad.out".
    operators = [use("cortex_m::quantized_conv2d.out", 15), use("cortex_m::pad.out", 6)]
    assert unmet(dataclasses.replace(NEEDED, operators=operators), ARM) == [
        "operator cortex_m::quantized_conv2d.out with 15 arguments; its kernel expects 14",
        "operator cortex_m::pad.out (int8)",
    ]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"schema_identifier": "ET13"}, "schema ET13; it reads ET12"),
        ({"delegates": {"NeutronBackend": 2}}, "delegate NeutronBackend (2 partitions); it has EthosUBackend"),
        ({"program_bytes": 40_000_000}, "room for 40,000,000 bytes of program; it has 33,554,432"),
        (
            {"planned_bytes": [2_097_152]},
            "2,097,162 bytes for planned memory and inputs; it has 2,097,152 for all that a method needs",
        ),
    ],
)
def test_each_kind_of_thing_that_is_missing(changes: dict[str, object], line: str) -> None:
    assert unmet(NEEDED, ARM) == []
    assert unmet(dataclasses.replace(NEEDED, **changes), ARM) == [line]  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="cannot execute this program:\n  "):
        check_runtime(dataclasses.replace(NEEDED, **changes), ARM)  # type: ignore[arg-type]


def test_a_program_that_the_wheel_and_the_firmware_have_all_for() -> None:
    required = requirements(PROGRAM.read_bytes())
    assert [(operator.name, operator.num_args, operator.dtypes) for operator in required.operators] == [
        ("aten::add.out", 5, ("float32",)),
        ("aten::mul.out", 4, ("float32",)),
    ]
    check_runtime(required, ARM)
    check_runtime(required, wheel_image())
    assert wheel_image().sha256
    assert "XnnpackBackend" in wheel_image().delegates
