"""Conditions that the user can fix."""

from __future__ import annotations

from collections.abc import Iterable


class LowerdeckError(Exception):
    """A condition that the person at the terminal can mend: shown as its message, without a traceback."""


class ConfigurationError(LowerdeckError):
    """The configuration names something that does not exist or cannot be combined."""

    def __init__(self, message: str, invalid_keys: Iterable[str] = ()) -> None:
        """See the class.

        Args:
            message: What is wrong and how to fix it.
            mistaken: Keys whose values are wrong by themselves, by a name that does not exist or by their type; other
                problems come from combinations.
        """
        super().__init__(message)
        self.invalid_keys = tuple(invalid_keys)


class UnsupportedQuantizationError(ConfigurationError):
    """A backend has no quantizer for the wanted scheme; the message lists the schemes that it has."""


class ConversionError(LowerdeckError):
    """A converter crashed, ran out of time or returned something that is no compiled partition."""


class SampleOverlapError(LowerdeckError):
    """A sample serves calibration and evaluation: the accuracy would be measured on data the program has seen."""


class GateError(LowerdeckError):
    """A build was measured and is not good enough for the chosen gates."""
