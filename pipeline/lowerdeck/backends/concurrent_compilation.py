"""Compiles the partitions of a program in several processes: a backend's passes and its compiler use one processor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from lowerdeck.compat.exir import COMPILE_ALL
from lowerdeck.contracts.errors import NOT_ABOUT_AN_OPERATOR
from lowerdeck.contracts.lowering import CompiledPartition
from lowerdeck.runtime.parallel_map import in_order, num_processors

_MOST_PROCESSES = 4
"""Each may copy most of this process's memory, because Python counts references inside objects."""


@contextmanager
def concurrent_compilation(partitions: list[CompiledPartition]) -> Iterator[None]:
    """Have `to_backend` compile partitions in forked processes, to the same bytes as one after the other.

    A partition that fails is compiled again in this process, where the exception's traceback shows which one it is.

    Args:
        partitions: The list to which the backend appends each compiled partition, in the program's order.
    """
    one_after_the_other = COMPILE_ALL.original().__func__

    def compile_all(
        compiler: Any, programs: Mapping[str, Sequence[Any]], specs: Mapping[str, Sequence[Any]]
    ) -> dict[str, list[Any]]:
        jobs = [(method, index) for method, of_method in programs.items() for index in range(len(of_method))]
        before, processes = len(partitions), min(num_processors(), _MOST_PROCESSES)
        if len(jobs) < 2 or processes < 2:
            results: dict[str, list[Any]] = one_after_the_other(compiler, programs, specs)
            return results

        def compile_one(number: int) -> tuple[Any, list[CompiledPartition]] | None:
            method, index = jobs[number]
            partitions[before:] = [_OF_ANOTHER_PROCESS] * number  # backends number their folders by it
            try:
                result = compiler.preprocess(programs[method][index], specs[method][index])
            except NOT_ABOUT_AN_OPERATOR:
                raise
            except Exception:  # as said above, whatever it is
                return None
            return result, partitions[before + number :]

        found: dict[str, list[Any]] = {method: [] for method in programs}
        # Where one fails, the others' forks end at once: a traceback would keep them running.
        with closing(in_order(compile_one, range(len(jobs)), processes)) as results_in_order:
            for (method, index), compiled in zip(jobs, results_in_order, strict=True):
                if compiled is None:
                    again = {method: [programs[method][index]]}, {method: [specs[method][index]]}
                    found[method] += one_after_the_other(compiler, *again)[method]
                else:
                    found[method].append(compiled[0])
                    partitions.extend(compiled[1])
        return found

    with COMPILE_ALL.active(classmethod(compile_all)):
        yield


_OF_ANOTHER_PROCESS = CompiledPartition(payload=b"")
