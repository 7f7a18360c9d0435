"""Step baseline: float and quantized program on the evaluation samples, in batches where that yields the same bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from lowerdeck.contracts.evaluation import OutputSpec
from lowerdeck.contracts.samples import Dataset, Sample, finite_sample
from lowerdeck.runtime.batched_method import UnbatchableError
from lowerdeck.runtime.tensors import same_bits
from lowerdeck.runtime.torch_program import LEAST_BATCH, BatchedTorchProgram, Inputs, TorchProgram, torch_program

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_LEAST_PER_CHECKED = 4
"""Fewer samples than so many for each that is executed both ways take less time alone."""
InBatches = Callable[[TorchProgram, int, Sequence[Inputs]], BatchedTorchProgram]
"""(program, most samples in a batch, some samples) -> the program for batches, or an UnbatchableError."""


@dataclass(frozen=True, kw_only=True)
class BatchChoice:
    """When programs are executed in batches."""

    most: int
    """Most samples in a batch."""
    num_checked: int
    """Number of samples to execute both ways; without any, nothing is executed in batches."""
    seed: int
    """Draws them."""
    in_batches: InBatches = TorchProgram.in_batches
    """Makes the program for batches."""


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The programs of the baseline, and how they are executed."""

    programs: Mapping[str, TorchProgram | BatchedTorchProgram]
    executed_by: str
    """Who executes them, which of them in batches, and why not the others."""
    differences: tuple[str, ...] = ()
    """What differed in batches: program, output, and by how much."""


def prepare(
    programs: Mapping[str, ExportedProgram],
    specs: Sequence[OutputSpec],
    samples: Sequence[int],
    dataset: Dataset,
    choice: BatchChoice,
) -> Baseline:
    """Choose for every program whether it is executed in batches: only where this yields the same bits.

    Some samples are executed both ways. A program for which any output differs is executed sample by sample for all.

    Args:
        programs: By name: `float`, `quantized`.
        specs: Their outputs.
        samples: Indices into the evaluation split.
        dataset: The dataset of the samples.
        choice: When to choose batches.
    """
    alone, executor = {name: torch_program(each) for name, each in programs.items()}, f"PyTorch {torch.__version__}"
    if choice.most < LEAST_BATCH or choice.num_checked == 0 or len(samples) < _LEAST_PER_CHECKED * choice.num_checked:
        return Baseline(programs=alone, executed_by=f"{executor}, sample by sample")
    drawn = np.random.default_rng(choice.seed).choice(len(samples), choice.num_checked, replace=False).tolist()
    checked = [samples[position] for position in sorted(drawn)]
    given = [finite_sample(dataset.evaluation, index) for index in checked]
    chosen: dict[str, TorchProgram | BatchedTorchProgram] = {}
    how, differences = [], []
    for name, program in alone.items():
        chosen[name] = program
        try:
            batched = _batched(program, given, choice)
        except UnbatchableError as error:
            how.append(f"{name} sample by sample, because {error}")
            continue
        if (difference := _first_difference(program, batched, specs, given, checked)) is not None:
            how.append(f"{name} sample by sample, because in batches {difference}")
            differences.append(f"{name}: {difference}")
            continue
        chosen[name] = batched
        how.append(f"{name} in batches")
    if any(isinstance(program, BatchedTorchProgram) for program in chosen.values()):
        how.append(f"{len(checked)} of {len(samples)} samples cross-checked sample by sample")
    return Baseline(programs=chosen, executed_by=f"{executor}: {'; '.join(how)}", differences=tuple(differences))


def _batched(program: TorchProgram, given: Sequence[Sample], choice: BatchChoice) -> BatchedTorchProgram:
    if any(sample.following for sample in given):
        raise UnbatchableError("a sample has several calls")
    with torch.no_grad():
        return choice.in_batches(program, choice.most, [sample.inputs for sample in given])


def _first_difference(
    program: TorchProgram,
    batched: BatchedTorchProgram,
    specs: Sequence[OutputSpec],
    given: Sequence[Sample],
    indices: Sequence[int],
) -> str | None:
    """Which output of which sample differs between the two, and by how much; None where none does."""
    inputs = [sample.inputs for sample in given]
    repeated = (inputs * batched.size)[: -(-len(inputs) // batched.size) * batched.size]  # all batches are whole
    with torch.no_grad():
        at_once = batched.calls(repeated)
        for index, sample, found in zip(indices, inputs, at_once, strict=False):
            for spec, first, second in zip(specs, program(sample), found, strict=True):
                if not same_bits(first, second):
                    return f"{spec.name} of sample {index} differs {_extent(first, second)}"
    return None


def _extent(alone: torch.Tensor, batched: torch.Tensor) -> str:
    if alone.shape != batched.shape or alone.dtype != batched.dtype:
        return f"in its type: {alone.dtype} {list(alone.shape)} alone, {batched.dtype} {list(batched.shape)} in a batch"
    distance = (alone.to(torch.float64) - batched.to(torch.float64)).abs()
    return f"in {int((distance != 0).sum())} of {alone.numel()} values, by at most {float(distance.max()):.3g}"
