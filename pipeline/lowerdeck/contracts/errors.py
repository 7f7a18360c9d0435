"""Errors that the user can fix."""

from __future__ import annotations

from collections.abc import Iterable


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


NOT_ABOUT_AN_OPERATOR = (ConverterTimeoutError, OSError, MemoryError)
"""What a partitioner or a compiler raises whatever the operators."""


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
