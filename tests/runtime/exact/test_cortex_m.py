"""lowerdeck.runtime.exact.cortex_m: batches have the integers of each sample alone, on the CPU and on a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.runtime_images import SINGLE_ROUNDING
from lowerdeck.graph.memory_formats import to_memory_format
from lowerdeck.operators.case import Case, program
from lowerdeck.operators.case import samples as samples_of
from lowerdeck.operators.cases.cortex_m import CASES as CASES_OF_ROWS
from lowerdeck.runtime.exact import cortex_m
from lowerdeck.runtime.exact.accumulate import exact_kernels
from lowerdeck.runtime.exact.litert_rescale import Rescale
from lowerdeck.runtime.operators import resolve
from lowerdeck.runtime.tensors import same_bits
from tests.project import REPOSITORY
from tests.runtime.exact.graphs import DEVICES
from tests.runtime.lowering import Lowered, lower
from tests.runtime.networks import samples_for
from tests.runtime.test_cmsis_nn import BIAS, EXACT, HALF, SCALES, SHIFTS, random_int8

GetLowered = Callable[..., Lowered]
BATCH = 5
DELEGATED = frozenset(
    row["case"]
    for row in json.loads((REPOSITORY / "docs" / "operators" / "cortex_m.json").read_text())["rows"]
    if row["outcome"] in ("delegated", "partly")
)
"""Rows of the page of operators whose operators CMSIS-NN computes."""
ROWS = [case for case in CASES_OF_ROWS if case.label in DELEGATED and case.what != "in one dimension"]
"""All of them but what becomes an image at export, which `lower` leaves out."""
SECOND = {"quantized_add": 4, "quantized_mul": 2}
"""Position of the second operand."""
WIDE = random_int8(1, 40, 9, 8, seed=3)
MORE = {
    "linear of the vector instructions": (
        "quantized_linear",
        (random_int8(3, 9), random_int8(4, 9), None, BIAS[None], 5, 0, -2, [HALF], [-7], 127, -128),
    ),
    "grouped": (
        "quantized_conv2d",
        (WIDE, random_int8(4, 3, 3, 10, seed=1), None, [1, 2], [1, 1], [2, 1], 128, 5, SCALES, SHIFTS, -128, 127, None),
    ),
    "sums beyond float32": (
        "quantized_linear",
        (random_int8(2, 3000), random_int8(4, 3000), None, None, 128, 0, 0, [1999999999], [-13], 127, -128),
    ),
    "scaled up": ("quantized_mul", (WIDE, 3, WIDE, -5, 4, 1700000000, 1)),
    "one value for each channel": (
        "quantized_add",
        (WIDE, 3, HALF, 0, random_int8(1, 40, 1, 1), -5, 1300000000, -1, 4, 1700000000, -18, -128, 127),
    ),
}  # fmt: skip
CASES = {name: (name, arguments) for name, arguments in EXACT.items() if name in cortex_m._PREPARE} | MORE


def drawn(value: torch.Tensor) -> torch.Tensor:
    """BATCH samples [b x sizes] of every value, and of extreme ones."""
    samples = torch.stack([random_int8(*value.shape, seed=seed) for seed in range(BATCH)])
    samples[0] = torch.where(samples[0] > 0, 127, -128)
    return samples


def with_batch(name: str, arguments: tuple[Any, ...]) -> tuple[list[int], list[Any]]:
    """The positions of what is computed, and the arguments with batches there."""
    computed = [0] if name not in SECOND else [0, SECOND[name]]
    return computed, [drawn(value) if position in computed else value for position, value in enumerate(arguments)]


def executed(name: str, arguments: tuple[Any, ...], device: torch.device, *, rounds_once: bool = False) -> torch.Tensor:
    """The result of the executor for batches, after asserting that it took the operator."""
    computed, given = with_batch(name, arguments)
    known = [cortex_m.COMPUTED if position in computed else value for position, value in enumerate(arguments)]
    with exact_kernels():
        step = cortex_m.prepare(f"cortex_m::{name}.out", known, arguments[0].shape, device, rounds_once=rounds_once)
        assert step is not None
        return step([value.to(device) if position in computed else value for position, value in enumerate(given)]).cpu()


def expected(name: str, arguments: tuple[Any, ...], *definitions: str) -> torch.Tensor:
    """The reference's results, sample by sample."""
    kernel, (computed, given) = resolve(f"cortex_m::{name}.out", definitions), with_batch(name, arguments)
    rows = [[each[row] if at in computed else each for at, each in enumerate(given)] for row in range(BATCH)]
    return torch.stack([kernel.function(*row) for row in rows])


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize("rounds_once", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_batch_has_the_integers_of_each_sample(case: str, rounds_once: bool, device: torch.device) -> None:
    name, arguments = CASES[case]
    wanted = expected(name, arguments, *[SINGLE_ROUNDING] * rounds_once)
    found = executed(name, arguments, device, rounds_once=rounds_once)
    assert found.dtype == wanted.dtype
    assert torch.equal(found, wanted)
    assert len(set(found.flatten().tolist())) > 3


def test_layouts_with_the_channel_last_are_alike() -> None:
    for name in ("quantized_conv2d", "quantized_depthwise_conv2d"):
        value, *others = EXACT[name]
        found = executed(name, (value, *others), torch.device("cpu"))
        given = drawn(value).permute(0, 1, 3, 4, 2)
        with exact_kernels():
            known = [cortex_m.COMPUTED, *others]
            sizes = given.shape[1:]
            step = cortex_m.prepare(f"cortex_m::{name}_nhwc.out", known, sizes, torch.device("cpu"))
            assert step is not None
            assert torch.equal(step([given, *others]).permute(0, 1, 4, 2, 3), found)


def test_what_no_arithmetic_is_proven_for_is_left_to_the_reference() -> None:
    arguments = (
        cortex_m.COMPUTED,
        random_int8(4, 9),
        None,
        None,
        5,
        0,
        -2,
        [HALF],
        [25],
        127,
        -128,
    )  # overflows 32 bits
    assert cortex_m.prepare("cortex_m::quantized_linear.out", arguments, (2, 9), torch.device("cpu")) is None
    softmax = cortex_m.COMPUTED, 1, 0, 0, 1, 1, 1
    assert cortex_m.prepare("cortex_m::softmax.out", softmax, (2, 9), torch.device("cpu")) is None


@pytest.mark.parametrize("position", [1, 2, 8])
def test_weights_and_biases_that_are_computed_are_left_to_the_reference(position: int) -> None:
    known = [cortex_m.COMPUTED, *EXACT["quantized_conv2d"][1:-1], cortex_m.COMPUTED]  # the last is scratch memory
    sizes, cpu = EXACT["quantized_conv2d"][0].shape, torch.device("cpu")
    assert cortex_m.prepare("cortex_m::quantized_conv2d.out", known, sizes, cpu) is not None
    known[position] = cortex_m.COMPUTED
    assert cortex_m.prepare("cortex_m::quantized_conv2d.out", known, sizes, cpu) is None


@pytest.mark.parametrize("network", ["plain", "two"])
@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_a_program_in_batches(lowered: GetLowered, network: str, device: torch.device) -> None:
    opened, samples = lowered("cortex_m", network, True).open(batch_device=device.type), samples_for(network, True)
    assert opened.batch_executor().endswith(", those of Cortex-M in batches")
    alone = [opened(*sample) for sample in samples]
    for some in (samples, samples[:3]):
        for found, wanted in zip(opened.calls(some, cross_check=[0, 2]), alone, strict=False):
            assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("case", ROWS, ids=lambda case: f"{case.table}, {case.label}")
def test_operator_row(case: Case, tmp_path: Path) -> None:
    """The program of an operator's row, as the page of operators measures it: each operator, and all outputs."""
    model = program(case, quantized=True).to(memory_format=torch.channels_last)
    samples = [to_memory_format(sample, "channels_last") for sample in samples_of(case, 6)]
    build = lower(model, samples[:4], "cortex_m", tmp_path / "build", **case.options)
    opened = build.open()
    alone = [opened(*sample) for sample in samples]
    for found, wanted in zip(opened.calls(samples, cross_check=range(6)), alone, strict=True):
        assert all(same_bits(one, other) for one, other in zip(found, wanted, strict=True))


def test_a_damaged_rescaling_is_found_and_named(lowered: GetLowered, monkeypatch: pytest.MonkeyPatch) -> None:
    apply = Rescale.__call__
    monkeypatch.setattr(Rescale, "__call__", lambda self, sums: apply(self, sums * 1.02))
    opened, samples = lowered("cortex_m", "plain", True).open(), samples_for("plain", True)
    opened.calls(samples)  # nothing is compared
    with pytest.raises(LowerdeckError, match=r"cortex_m::quantized_\w+.out: a batch differs from a sample alone"):
        opened.calls(samples, cross_check=[3])


def test_a_batch_that_fails_ends_with_the_way_out(lowered: GetLowered, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("no kernel")

    monkeypatch.setattr("lowerdeck.runtime.batched_method.prepare_step", fail)
    opened, samples = lowered("cortex_m", "plain", True).open(), samples_for("plain", True)
    with pytest.raises(LowerdeckError, match=r"cortex_m::\w+.out: a batch failed, .*no kernel.*engine: reference"):
        opened.calls(samples)
