"""Compiles the partitions of a program in several processes: a backend's passes and its compiler use one processor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from lowerdeck.compat.exir import COMPILE_ALL
from lowerdeck.contracts.errors import is_about_no_operator, is_full_memory
from lowerdeck.contracts.lowering import CompiledPartition
from lowerdeck.runtime.parallel_map import in_order, num_processors

_MOST_PROCESSES = 4
"""Each may copy most of this process's memory, because Python counts references inside objects."""


@contextmanager
def concurrent_compilation(partitions: list[CompiledPartition]) -> Iterator[None]:
    """Have `to_backend` compile partitions in forked processes, to the same bytes as one after the other.

    A partition that fails is compiled again in this process, where the exception's traceback shows which one it is. The
    others are still compiled: where several fail, their exceptions are raised as a group.

    Args:
        partitions: The list to which the backend appends each compiled partition, in the program's order.
    """
    one_after_the_other = COMPILE_ALL.original().__func__

    def compile_all(
        compiler: Any, programs: Mapping[str, Sequence[Any]], specs: Mapping[str, Sequence[Any]]
    ) -> dict[str, list[Any]]:
        jobs = [(method, index) for method, of_method in programs.items() for index in range(len(of_method))]
        before, processes = len(partitions), min(num_processors(), _MOST_PROCESSES, len(jobs))
        failed = list[Exception]()

        def compile_one(number: int) -> tuple[Any, list[CompiledPartition]] | None:
            method, index = jobs[number]
            partitions[before:] = [_OF_ANOTHER_PROCESS] * number  # backends number their folders by it
            # Alone, this process may have the memory that several have not.
            result = _attempted(
                lambda: compiler.preprocess(programs[method][index], specs[method][index]), is_full_memory
            )
            return None if isinstance(result, Exception) else (result, partitions[before + number :])

        def compile_here(number: int) -> list[Any]:
            method, index = jobs[number]
            one = {method: [programs[method][index]]}, {method: [specs[method][index]]}
            results = _attempted(lambda: one_after_the_other(compiler, *one))
            if isinstance(results, Exception):
                failed.append(results)
                partitions[before + number :] = [_OF_ANOTHER_PROCESS]
                return []
            return list(results[method])

        found: dict[str, list[Any]] = {method: [] for method in programs}
        in_forks = in_order(compile_one, range(len(jobs)), processes) if processes > 1 else (None for _ in jobs)
        with closing(in_forks):  # if an exception leaves it, its traceback would keep the forks running
            for number, compiled in enumerate(in_forks):
                if compiled is None:
                    found[jobs[number][0]] += compile_here(number)
                else:
                    found[jobs[number][0]].append(compiled[0])
                    partitions.extend(compiled[1])
        if failed:
            raise failed[0] if len(failed) == 1 else ExceptionGroup("partitions were not compiled", failed)
        return found

    with COMPILE_ALL.active(classmethod(compile_all)):
        yield


def _attempted(compile_one: Callable[[], Any], is_tried_again: Callable[[Exception], bool] = lambda _: False) -> Any:
    """What it returns, or the exception that it raises, unless another partition would raise it, too."""
    try:
        return compile_one()
    except Exception as error:  # whatever a library raises
        if is_about_no_operator(error) and not is_tried_again(error):
            raise
        return error


_OF_ANOTHER_PROCESS = CompiledPartition(payload=b"")
