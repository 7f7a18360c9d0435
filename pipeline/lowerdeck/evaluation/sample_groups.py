"""Groups samples whose outputs have the same shapes, so that they are reduced by one call; memory stays bounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_MOST_SAMPLES, _MOST_ELEMENTS, _MOST_INPUT_ELEMENTS = 256, 1 << 15, 1 << 22
"""Of a group: samples, elements of outputs, which are copied, and of targets and inputs, which only wait."""
_LARGE = 1 << 13
"""Elements of outputs from which a sample is a group of its own: joining them would cost more than calls do."""


@dataclass(frozen=True, kw_only=True)
class SampleGroup:
    """Samples whose outputs have the same shapes and dtypes."""

    start: int
    """Number of the first one; the others follow it."""
    values: Mapping[str, Sequence[Array]]
    """Program -> its outputs in order, [b x ...]."""
    targets: Sequence[Any]
    inputs: Sequence[Sequence[Array]]


@dataclass
class SampleGroups:
    """Collects samples and passes them on in groups."""

    reduce: Callable[[SampleGroup], None]
    """Gets each group once it is full, or its successor differs."""
    _shapes: Any = None
    _start: int = 0
    _elements: int = 0
    _waiting_elements: int = 0
    _values: list[Mapping[str, Sequence[Array]]] = field(default_factory=list)
    _targets: list[Any] = field(default_factory=list)
    _inputs: list[Sequence[Array]] = field(default_factory=list)

    def add(self, number: int, values: Mapping[str, Sequence[Array]], target: Any, inputs: Sequence[Array]) -> None:
        """Add sample `number`; see RecordsBuilder.add."""
        shapes = [(name, [(value.shape, value.dtype) for value in several]) for name, several in values.items()]
        size = sum(value.size for several in values.values() for value in several)
        follows = shapes == self._shapes and number == self._start + len(self._values)
        if size >= _LARGE or not follows:
            self.flush()
        if not self._values:
            self._start, self._shapes = number, shapes
        self._values.append(values)
        self._targets.append(target)
        self._inputs.append(inputs)
        self._elements += size
        self._waiting_elements += np.size(target) + sum(value.size for value in inputs)
        is_full = self._elements >= _MOST_ELEMENTS or self._waiting_elements >= _MOST_INPUT_ELEMENTS
        if size >= _LARGE or is_full or len(self._values) >= _MOST_SAMPLES:
            self.flush()

    def flush(self) -> None:
        """Pass on what waits."""
        if not self._values:
            return
        group = SampleGroup(
            start=self._start,
            values={
                name: [_joined(each) for each in zip(*(values[name] for values in self._values), strict=True)]
                for name in self._values[0]
            },
            targets=self._targets,
            inputs=self._inputs,
        )
        self._values, self._targets, self._inputs = [], [], []
        self._elements = self._waiting_elements = 0
        self.reduce(group)


def _joined(arrays: Sequence[Array]) -> Array:
    """[b x ...]; a single array is not copied."""
    return np.asarray(arrays[0])[np.newaxis] if len(arrays) == 1 else np.stack(arrays)
