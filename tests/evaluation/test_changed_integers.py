"""A quantized program that computes other integers of integers than the model is refused, with its place."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks.in_turns import create
from lowerdeck.contracts.backends import DynamicDimension
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.evaluation.changed_integers import check_integers
from lowerdeck.quantization import pt2e
from lowerdeck.steps.export import export
from tests.networks import quantized_network

TARGETS = ["cortex_m55", "ethos_u55_128", "neutron_imxrt700", "xnnpack_cpu"]


class Rows(nn.Module):
    """Chooses rows of a table, and returns which if it is asked to."""

    def __init__(self, *, returned: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.returned, self.table, self.last = returned, nn.Embedding(400, 8), nn.Linear(8, 4)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = torch.sqrt(tokens.float() * 37).long()
        values = self.last(self.table(rows))
        return (values, rows) if self.returned else (values,)


def programs(
    target: str, dynamic: tuple[DynamicDimension, ...] = (), *, returned: bool
) -> tuple[torch.export.ExportedProgram, torch.export.ExportedProgram]:
    """The float program and the quantized one."""
    network, backend = Rows(returned=returned).eval(), create(target)
    known = samples(*((3, 8, 5) if dynamic else ()))
    float_program = export(network, [[1, 5]], dynamic, backend.memory_format, input_dtypes=["int64"])
    return float_program, quantized_network(network, backend, known, dynamic=dynamic)


def samples(*sizes: int) -> list[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randint(1, 4000, [1, size], generator=generator),) for size in sizes or [5] * 8]


@pytest.mark.parametrize("target", TARGETS)
def test_the_same_integers_pass(target: str) -> None:
    exported, quantized = programs(target, returned=True)
    check_integers(exported, quantized, samples())


def test_samples_may_differ_in_size(monkeypatch: pytest.MonkeyPatch) -> None:
    dynamic = (DynamicDimension(dim=1, min=2, max=16),)
    exported, quantized = programs("xnnpack_cpu", dynamic, returned=True)
    check_integers(exported, quantized, samples(4, 7))
    monkeypatch.setattr(pt2e, "leave_floats_between_integers", lambda *_: None)
    with pytest.raises(LowerdeckError, match="integers alone"):
        check_integers(exported, programs("xnnpack_cpu", dynamic, returned=True)[1], samples(4, 7))


@pytest.mark.parametrize("returned", [True, False])
@pytest.mark.parametrize("target", TARGETS)
def test_rounded_rows_are_refused(target: str, returned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule that keeps them exact is taken away."""
    monkeypatch.setattr(pt2e, "leave_floats_between_integers", lambda *_: None)
    exported, quantized = programs(target, returned=returned)
    with pytest.raises(LowerdeckError, match=r"integers alone.* gives \d+ in place of \d+.*keep_float") as refusal:
        check_integers(exported, quantized, samples())
    assert "test_changed_integers.py" in str(refusal.value)
