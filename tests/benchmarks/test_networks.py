"""benchmarks/networks.py: random networks, each lowered for each target, and what counts as right."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import lowerdeck.steps.convert_conforming
from benchmarks.in_turns import create
from benchmarks.networks import TARGETS, Network, build, builds
from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.runtime.floats import FloatProgram

NETWORKS = int(os.environ.get("LOWERDECK_TEST_NETWORKS", "2"))
"""How many; `LOWERDECK_TEST_NETWORKS=200 pytest tests/benchmarks/test_networks.py` has more of them."""
SEED = 9000
SMALL = 1
"""Number of a network that lowers within seconds."""


def test_a_number_makes_the_same_network() -> None:
    first, second = Network(SMALL).eval(), Network(SMALL).eval()
    given = torch.randn(first.shape)
    assert str(first) == str(second)
    assert torch.equal(first(given), second(given))
    assert len({str(Network(number)) for number in range(20)}) == 20


def test_a_network_that_computes_what_the_quantized_program_computes_is_right() -> None:
    made = build(SMALL, "xnnpack_cpu", create("xnnpack_cpu"))
    assert made.verdict == "right", made
    assert "operators delegated" in made.detail


def test_a_program_that_computes_something_else_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    convert = lowerdeck.steps.convert_conforming.convert_conforming

    def more(program: FloatProgram, samples: Sequence[Sequence[Tensor]]) -> list[tuple[Tensor, ...]]:
        return [tuple(output + 1 for output in program(*sample)) for sample in samples]

    def convert_then_change(*arguments: Any) -> Any:
        found = convert(*arguments)  # which refuses what is changed before
        monkeypatch.setattr(FloatProgram, "consecutive_calls", more)
        return found

    monkeypatch.setattr(lowerdeck.steps.convert_conforming, "convert_conforming", convert_then_change)
    assert build(SMALL, "xnnpack_cpu", create("xnnpack_cpu")).verdict == "wrong"


@pytest.mark.parametrize(
    ("error", "verdict"), [(ConfigurationError("does not suit"), "refused"), (KeyError("getitem"), "crashed")]
)
def test_a_refusal_is_not_a_crash(monkeypatch: pytest.MonkeyPatch, error: Exception, verdict: str) -> None:
    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(lowerdeck.steps.convert_conforming, "convert_conforming", fail)
    made = build(SMALL, "xnnpack_cpu", create("xnnpack_cpu"))
    assert made.verdict == verdict
    assert str(error) in made.detail


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(SEED, SEED + NETWORKS))
def test_networks_are_right_or_refused(number: int) -> None:
    options = argparse.Namespace(targets=TARGETS, scheme="int8", group_size=None, fallback=None)
    made = list(builds(number, options))
    assert [str(each) for each in made if each.verdict not in ("right", "refused")] == []
