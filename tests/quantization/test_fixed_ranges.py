"""Ranges that a quantizer fixes hold what their operator computes, and clip nothing that shares a range with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lowerdeck import backends
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.evaluation.quantization_error import sqnr_db
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.quantize import quantize
from tests.runtime.lowering import TARGETS, lower

Tensor = torch.Tensor
CASES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "in a concatenation": lambda a, b: torch.cat([a.softmax(-1), b], 1),
    "last in a concatenation": lambda a, b: torch.cat([b.flatten(1), a.softmax(-1).flatten(1)], 1),
    "in a concatenation of slices": lambda a, b: torch.cat([a.softmax(-1)[:, :3], b[:, 3:]], 1),
    "in a maximum": lambda a, b: torch.maximum(a.softmax(-1), b),
    "in a minimum": lambda a, b: torch.minimum(a.softmax(-1), b),
    "in a stack": lambda a, b: torch.stack([a.softmax(-1), b], 1).amax(1),
    "chosen by a comparison": lambda a, b: torch.where(b > 2, a.softmax(-1), b),
    "padded with another number": lambda a, b: nn.functional.pad(a.softmax(-1), (1, 1), value=-2.0),
}


class Around(nn.Module):
    """Two convolutions and what combines them."""

    def __init__(self, combine: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))
        self.combine = combine

    def forward(self, x: Tensor) -> Tensor:
        return self.combine(self.first(x), 3 * self.second(x))


class Head(nn.Module):
    """Scores and boxes in one tensor, as mobile detectors return them."""

    def __init__(self) -> None:
        super().__init__()
        self.scores, self.boxes = (nn.Conv2d(4, 4, 1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        scores, boxes = (layer(x).permute(0, 2, 3, 1).reshape(1, -1, 4) for layer in (self.scores, self.boxes))
        return torch.cat([scores.softmax(-1), 2 * boxes], -1)


def samples_of(num: int = 4) -> list[tuple[Tensor, ...]]:
    return [(2 * torch.randn(1, 4, 8, 8).to(memory_format=torch.channels_last),) for _ in range(num)]


def quantized(model: nn.Module, target: str, samples: list[tuple[Tensor, ...]]) -> Callable[..., Any]:
    backend, scheme = backends.create(target, **TARGETS[target]), QuantizationScheme(name="int8")

    def exported() -> torch.export.ExportedProgram:
        return torch.export.export(model, samples[0])

    state = calibrate(exported(), backend.quantizer(scheme), samples, len(samples))
    program: Callable[..., Any] = quantize(exported(), backend.quantizer(scheme), state)[0].module(check_guards=False)
    return program


def sqnr_of(model: Callable[..., Any], execute: Callable[..., Any], samples: Sequence[tuple[Tensor, ...]]) -> float:
    signal = noise = 0.0
    with torch.no_grad():
        for sample in samples:
            expected, actual = model(*sample).double(), execute(*sample)
            actual = actual[0] if isinstance(actual, (list, tuple)) else actual
            signal += float(expected.square().sum())
            noise += float((actual - expected).square().sum())
    return sqnr_db(signal, noise)


@pytest.mark.parametrize("name", CASES)
def test_what_shares_a_range_with_a_softmax_is_not_clipped(name: str) -> None:
    torch.manual_seed(0)
    model, samples = Around(CASES[name]).eval(), samples_of()
    found = sqnr_of(model, quantized(model, "cortex_m", samples), samples)
    assert math.isfinite(found)
    assert found > 20  # clipped, they have -1 to 3 dB; a comparison flips where its operands are nearly equal


def test_a_softmax_keeps_its_range_where_it_is_moved_alone() -> None:
    torch.manual_seed(0)
    samples = samples_of(1)
    program = quantized(Around(lambda a, b: a.softmax(-1).transpose(2, 3) * b).eval(), "cortex_m", samples)
    (moved,) = program.graph.find_nodes(op="call_function", target=torch.ops.aten.transpose.int)  # type: ignore[attr-defined]
    (user,) = moved.users
    assert moved.args[0].args[1:3] == user.args[1:3] == (1 / 256, -128)


@pytest.mark.parametrize("target", ["cortex_m", "ethos_u"])
def test_scores_and_boxes_in_one_output_reach_the_device(target: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, samples = Head().eval(), samples_of()
    build = lower(model, samples, target, tmp_path / target)
    assert sqnr_of(model, build.open(), samples) > 30


class Beside(nn.Module):
    """A linear layer's result and integers in one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor, indices: Tensor) -> Tensor:
        return torch.cat([indices.to(torch.float32), self.layer(x)], 1)


def test_what_is_joined_with_integers_is_not_rounded_to_integers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Beside().eval()
    samples = [(torch.randn(1, 8), torch.randint(-5, 5, (1, 8), dtype=torch.int32)) for _ in range(4)]
    build = lower(model, samples, "ethos_u", tmp_path / "build")
    assert sqnr_of(model, build.quantized, samples) > 30  # rounded, it has 20 dB
    assert sqnr_of(build.quantized, build.open(), samples) > 40
