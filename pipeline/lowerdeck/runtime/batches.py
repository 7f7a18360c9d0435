"""Executes a program for all samples of an evaluation: in batches, in several processes, held against the reference."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import torch

from lowerdeck.runtime.floats import FloatProgram
from lowerdeck.runtime.parallel_map import in_order, num_processors

EngineName = Literal["exact", "reference"]
Label = TypeVar("Label")
Item = TypeVar("Item")
Loaded = TypeVar("Loaded")
Inputs = tuple[torch.Tensor, ...]
_WORTH_FORKING_S = 1.0
"""Processes that load samples ahead start only where loading would take longer than this."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How host twins are executed."""

    name: EngineName = "exact"
    """`exact` executes batches, with the integers of the reference; `reference` one sample at a time."""
    batch_size: int = 32
    """Most samples that each process executes at once; fewer where a tensor of theirs would be too large."""
    num_cross_checked: int = 16
    """Number of samples that the reference executes as well."""
    seed: int = 0
    """Draws these samples."""

    def cross_checked(self, program: FloatProgram, samples: Sequence[int]) -> frozenset[int]:
        """The samples that the reference executes as well; none where it is the only executor."""
        if self.name == "reference" or not program.program.is_cross_checkable():
            return frozenset()
        count = min(self.num_cross_checked, len(samples))
        drawn = np.random.default_rng(self.seed).choice(len(samples), count, replace=False)
        return frozenset(samples[position] for position in drawn.tolist())

    def executor(self, program: FloatProgram, samples: Sequence[int]) -> str:
        """Who executes `samples`, and how many of them the reference executes as well."""
        if self.name == "reference":
            return program.executor
        count = len(self.cross_checked(program, samples))
        checked = f"; {count} of {len(samples)} samples cross-checked with the reference" if count else ""
        return f"{program.program.batch_executor()}{checked}"

    def executed(
        self, program: FloatProgram, samples: Sequence[int], load: Callable[[int], tuple[Label, Sequence[Inputs]]]
    ) -> Iterator[tuple[Label, Inputs]]:
        """The program's float32 outputs for every sample, in order; at most one batch per process is in memory.

        Args:
            program: The program, which starts from its initial state for every sample.
            samples: Numbers of the samples.
            load: Returns what belongs to a sample, and the inputs of all its calls: several where it is a stream. It
                may run in a forked process.

        Raises:
            LowerdeckError: an operator failed, or the reference computes something else than the exact executor.
        """
        checked = self.cross_checked(program, samples)
        size = self._size(program, len(samples))
        batches = [samples[start : start + size] for start in range(0, len(samples), size)]

        def loaded(batch: Sequence[int]) -> list[tuple[Label, Sequence[Inputs]]]:
            return [load(index) for index in batch]

        def execute(
            batch: Sequence[int], given: Sequence[tuple[Label, Sequence[Inputs]]]
        ) -> list[tuple[Label, Inputs]]:
            labels, samples = [label for label, _ in given], [calls for _, calls in given]
            rows = [row for row, index in enumerate(batch) if index in checked]
            if all(len(calls) == 1 for calls in samples) and self.name == "exact":
                return list(zip(labels, program.calls([calls[0] for calls in samples], cross_check=rows), strict=True))
            outputs = [
                self._stream(program, calls, row in rows) if len(calls) > 1 else program.first_call(*calls[0])
                for row, calls in enumerate(samples)
            ]
            return list(zip(labels, outputs, strict=True))

        if program.num_processes > 1:
            host = program.program

            def forked(batch: Sequence[int]) -> tuple[list[tuple[Label, Inputs]], Mapping[int, str]]:
                return execute(batch, loaded(batch)), host.faults()

            for results, faults in in_order(forked, batches, program.num_processes):
                host.leave_to_reference(faults)
                yield from results
            return
        for batch, each in zip(batches, _ahead(loaded, batches), strict=True):
            yield from execute(batch, each)

    def _size(self, program: FloatProgram, num_samples: int) -> int:
        """Samples in a batch: bounded by memory, and such that all processes get as many batches of one size."""
        if self.name == "reference":
            return 1
        size, most = self.batch_size, program.program.most_samples() or self.batch_size
        while size > max(1, most):
            size //= 2
        rounds = max(1, -(-num_samples // (size * program.num_processes)))
        return max(1, -(-num_samples // (rounds * program.num_processes)))

    def _stream(self, program: FloatProgram, calls: Sequence[Inputs], is_checked: bool) -> Inputs:
        """All calls of one sample, one after the other, or in batches where no call depends on those before it."""
        program.program.reset()
        if self.name == "reference" or program.program.has_state:
            return as_one([program(*inputs) for inputs in calls])
        outputs: list[Inputs] = []
        for start in range(0, len(calls), self.batch_size):
            check = (0,) if is_checked and start == 0 else ()
            outputs += program.calls(calls[start : start + self.batch_size], cross_check=check)
        return as_one(outputs)


def as_one(calls: Sequence[Inputs]) -> Inputs:
    """What a program returns for all calls of a sample: [1 x ...] for one call, [1 x calls x ...] for a stream."""
    if len(calls) == 1:
        return calls[0]
    return tuple(torch.stack(outputs, dim=min(1, outputs[0].dim())) for outputs in zip(*calls, strict=True))


def _ahead(load: Callable[[Item], Loaded], items: Sequence[Item]) -> Iterator[Loaded]:
    """`load(item)` for every item, in order; where that is slow, by processes that are ahead of the caller."""
    if not items:
        return
    started = time.perf_counter()
    first = load(items[0])
    slow = (time.perf_counter() - started) * len(items) > _WORTH_FORKING_S
    yield first
    yield from in_order(load, items[1:], num_processors() if slow else 1)
