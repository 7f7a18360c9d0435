"""Errors that the user can fix."""

from __future__ import annotations

import re
from collections.abc import Iterable

_FULL_MEMORY = re.compile(
    r"DefaultCPUAllocator|std::bad_alloc|Cannot allocate memory|\bMemoryError\b|failed to map segment"
)
"""In a RuntimeError of PyTorch, in an OSError, in an ImportError where the address space is limited (`ulimit -v`), or
in what a process wrote before it ended."""


class LowerdeckError(Exception):
    """An error that the user can fix; shown as its message, without a traceback."""

    def __str__(self) -> str:
        # It may quote a file name, or a value, that neither a terminal nor a log file in UTF-8 can show.
        return super().__str__().encode("utf-8", "backslashreplace").decode("utf-8")


class ConfigurationError(LowerdeckError):
    """The configuration names something that does not exist or cannot be combined."""

    def __init__(self, message: str, invalid_keys: Iterable[str] = ()) -> None:
        """Store the keys next to the message.

        Args:
            message: What is wrong and how to fix it.
            invalid_keys: Keys whose values are invalid by themselves (unknown name, wrong type).
        """
        super().__init__(message)
        self.invalid_keys = tuple(invalid_keys)


class UnsupportedQuantizationError(ConfigurationError):
    """The backend has no quantizer for the requested scheme; the message lists the supported ones."""


class ConversionError(LowerdeckError):
    """A converter crashed, exceeded its time limit or returned no valid partition."""


class ConverterTimeoutError(ConversionError):
    """A converter did not finish within its time limit."""


class ConverterKilledError(ConversionError):
    """A converter was ended by someone, or by the system, e.g. because memory ran out."""


def full_memory(messages: str) -> MemoryError | None:
    """What to raise about another process that failed, if it wrote that it had no memory left; None otherwise."""
    found = _FULL_MEMORY.search(messages)
    return None if found is None else MemoryError(f"another process had no memory left: {found[0]}")


def is_full_memory(error: BaseException) -> bool:
    """Whether this host had no memory left for what raised `error`, or for what it was raised from.

    PyTorch raises a plain RuntimeError then.
    """
    causes = [error]
    while (cause := causes[-1].__cause__) is not None and cause not in causes:
        causes.append(cause)
    return any(
        isinstance(each, MemoryError)
        or (isinstance(each, (RuntimeError, OSError, ImportError)) and _FULL_MEMORY.search(str(each)) is not None)
        for each in causes
    )


def is_of_host(error: BaseException) -> bool:
    """Whether `error` is about this host, such as a full disk or memory, and says nothing of code or a program."""
    return isinstance(error, OSError) or is_full_memory(error)


def is_about_no_operator(error: BaseException) -> bool:
    """Whether a partitioner or a compiler may raise `error` whatever the operators."""
    return isinstance(error, (ConverterTimeoutError, ConverterKilledError)) or is_of_host(error)


class PartitionCompilationError(ConversionError):
    """A backend did not compile one of its partitions."""

    def __init__(self, message: str, nodes: frozenset[str], failure: str) -> None:
        """Store the partition's nodes and the failure next to the message.

        Args:
            message: What failed and at which operator.
            nodes: Names of the partition's nodes in the edge program.
            failure: What the compiler said, in one line.
        """
        super().__init__(message)
        self.nodes, self.failure = nodes, failure
        self.others: tuple[PartitionCompilationError, ...] = ()
        """Those of the same program's other partitions."""


class PartitionExecutionError(PartitionCompilationError):
    """A backend compiled a partition into something that its runtime, or its host twin, does not execute."""


class ProgramError(LowerdeckError):
    """This host cannot execute a program as it is, so that another attempt gives the same."""


class SampleOverlapError(LowerdeckError):
    """Calibration and evaluation share a sample: accuracy would be measured on data that the program has seen."""


class GateError(LowerdeckError):
    """A metric of a build misses one of the chosen gates."""
