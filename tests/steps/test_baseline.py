"""lowerdeck.steps.baseline: batches only where every bit is that of a sample alone, and the record says so."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import torch
from torch import nn

from lowerdeck.contracts.evaluation import OutputSpec
from lowerdeck.contracts.samples import Sample
from lowerdeck.runtime.torch_program import BatchedTorchProgram, Inputs, TorchProgram, torch_program
from lowerdeck.steps.baseline import Baseline, BatchChoice, prepare
from lowerdeck.steps.evaluate import evaluate
from lowerdeck.steps.export import export
from tests.conftest import small_network
from tests.steps.test_evaluate import Data, Labels

SAMPLES = list(range(3, 61))
CHOICE = BatchChoice(most=8, num_checked=10, seed=1)
SPECS = (OutputSpec(name="logits"),)
PROGRAM = export(small_network(), [[1, 3, 32, 32]])


class Pictures(Labels):
    """A picture of noise for every index."""

    def __getitem__(self, index: int) -> Sample:
        generator = torch.Generator().manual_seed(index)
        return dataclasses.replace(super().__getitem__(index), inputs=(torch.randn(1, 3, 32, 32, generator=generator),))


class Streams(Pictures):
    """One sample of them has several calls."""

    def __getitem__(self, index: int) -> Sample:
        sample = super().__getitem__(index)
        return dataclasses.replace(sample, following=(sample.inputs,)) if index == 20 else sample


DATA = Data(Pictures([0] * 61))


def prepared(choice: BatchChoice = CHOICE, data: Data = DATA, samples: Sequence[int] = SAMPLES) -> Baseline:
    return prepare({"float": PROGRAM, "quantized": PROGRAM}, SPECS, samples, data, choice)


def outputs_of(baseline: Baseline, data: Data = DATA, num_processes: int = 1) -> list[bytes]:
    found = evaluate(baseline.programs, SAMPLES, data, num_processes)
    return [sample.values[name][0].tobytes() for sample in found for name in ("float", "quantized")]


def alone(data: Data = DATA) -> list[bytes]:
    program = torch_program(PROGRAM)
    return outputs_of(Baseline(programs={"float": program, "quantized": program}, executed_by=""), data)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As in a stage: forked processes lack PyTorch's other threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("num_processes", [1, 2])
def test_batches_give_the_bytes_of_single_samples(num_processes: int) -> None:
    baseline = prepared()
    assert all(isinstance(program, BatchedTorchProgram) for program in baseline.programs.values())
    assert baseline.executed_by == (
        f"PyTorch {torch.__version__}: float in batches; quantized in batches; "
        "10 of 58 samples cross-checked sample by sample"
    )
    assert baseline.differences == ()
    assert outputs_of(baseline, num_processes=num_processes) == alone()


def with_another_bit(which: int) -> Callable[[TorchProgram, int, Sequence[Inputs]], BatchedTorchProgram]:
    """Batches of the program number `which` whose first output has another last bit in one place."""
    made: list[TorchProgram] = []

    class WithAnotherBit(BatchedTorchProgram):
        def calls(self, samples: Sequence[Inputs]) -> list[Inputs]:
            found = super().calls(samples)
            found[3][0][0, 1] = torch.nextafter(found[3][0][0, 1], torch.tensor(9.0))
            return found

    def in_batches(program: TorchProgram, most: int, samples: Sequence[Inputs]) -> BatchedTorchProgram:
        made.append(program)
        batched = program.in_batches(most, samples)
        return WithAnotherBit(program, batched._graph, batched.size) if len(made) == which else batched

    return in_batches


def test_a_program_with_other_bits_is_executed_sample_by_sample_and_the_record_says_so() -> None:
    baseline = prepared(dataclasses.replace(CHOICE, in_batches=with_another_bit(2)))
    (difference,) = baseline.differences
    assert difference.startswith("quantized: logits of sample ")
    assert "differs in 1 of 10 values, by at most " in difference
    assert (
        f"quantized sample by sample, because in batches {difference.removeprefix('quantized: ')}"
        in baseline.executed_by
    )
    assert "float in batches" in baseline.executed_by
    assert isinstance(baseline.programs["quantized"], TorchProgram)
    assert outputs_of(baseline) == alone()


def test_streams_are_executed_call_by_call() -> None:
    data = Data(Streams([0] * 61))
    drawn = next(seed for seed in range(99) if 20 in checked(seed))
    baseline = prepared(dataclasses.replace(CHOICE, seed=drawn), data)
    assert "float sample by sample, because a sample has several calls" in baseline.executed_by
    not_drawn = next(seed for seed in range(99) if 20 not in checked(seed))
    baseline = prepared(dataclasses.replace(CHOICE, seed=not_drawn), data)
    assert "float in batches" in baseline.executed_by
    assert outputs_of(baseline, data) == alone(data)


def checked(seed: int) -> list[int]:
    return [SAMPLES[place] for place in np.random.default_rng(seed).choice(len(SAMPLES), 10, replace=False)]


@pytest.mark.parametrize(
    ("choice", "samples"),
    [
        (dataclasses.replace(CHOICE, most=1), SAMPLES),
        (dataclasses.replace(CHOICE, num_checked=0), SAMPLES),
        (CHOICE, SAMPLES[:39]),
    ],
)
def test_few_samples_and_unchecked_ones_are_executed_alone(choice: BatchChoice, samples: Sequence[int]) -> None:
    baseline = prepared(choice, samples=samples)
    assert baseline.executed_by == f"PyTorch {torch.__version__}, sample by sample"
    assert all(isinstance(program, TorchProgram) for program in baseline.programs.values())


def test_control_flow_is_executed_sample_by_sample_and_the_record_says_why() -> None:
    class Cond(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))
            return found

    program = torch.export.export(Cond(), (torch.ones(1, 3, 32, 32),))
    baseline = prepare({"float": program}, SPECS, SAMPLES, DATA, CHOICE)
    assert baseline.executed_by.endswith("float sample by sample, because it has control flow")
    found = [sample.values["float"][0] for sample in evaluate(baseline.programs, SAMPLES, DATA)]
    wanted = [program.module()(*DATA.evaluation[index].inputs).numpy() for index in SAMPLES]
    assert all(np.array_equal(first, second) for first, second in zip(found, wanted, strict=True))
