"""Results of calibration: the state of observers and the ranges that they saw."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import as_tensors, as_written, read_json, require_file, together, write_bytes, write_json
from lowerdeck.contracts.quantization import ObservedRange, ObserverState

_TRAINED = "trained/"
"""Prefix of the names of trained weights among the tensors of observers."""


def write_observers(state: ObserverState | None) -> None:
    """Write buffers of observers, their layout, the ranges they saw and trained weights; None writes an empty state."""
    from safetensors.torch import save

    state = state or ObserverState(tensors={}, layout="none")
    tensors = state.tensors | {_TRAINED + name: tensor for name, tensor in state.trained.items()}
    with together():
        write_json(paths.OBSERVED_RANGES, {name: dataclasses.asdict(seen) for name, seen in state.ranges.items()})
        write_bytes(paths.OBSERVERS, save(dict(sorted(tensors.items())), metadata={"layout": state.layout}))


def read_observed(entry: Mapping[str, Any]) -> ObservedRange:
    """The observed range that JSON has as `entry`."""
    return ObservedRange(**{**entry, "histogram": tuple(entry.get("histogram", ()))})


def read_observers() -> ObserverState:
    """The state that `write_observers` wrote."""
    from safetensors import safe_open

    stored = read_json(paths.OBSERVED_RANGES)
    with as_written(paths.OBSERVED_RANGES):
        ranges = {name: read_observed(seen) for name, seen in stored.items()}
    require_file(paths.OBSERVERS)
    with as_tensors(paths.OBSERVERS), safe_open(paths.OBSERVERS, framework="pt") as file:
        layout = (file.metadata() or {}).get("layout", "")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    trained = {name.removeprefix(_TRAINED): tensors.pop(name) for name in list(tensors) if name.startswith(_TRAINED)}
    return ObserverState(tensors=tensors, layout=layout, ranges=ranges, trained=trained)
