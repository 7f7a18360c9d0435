"""Outputs of the `.pte` on all samples, kept on disk for metrics that need them whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import beside
from lowerdeck.contracts.evaluation import OutputSpec, SampleOutputs
from lowerdeck.formats import tensor_rows
from lowerdeck.formats.tensor_rows import RowSpec


class KeptOutputs:
    """A temporary file in build/evaluate/, which loses its name as soon as it is open: nothing is left of it."""

    def __init__(self, specs: Sequence[OutputSpec], num_samples: int) -> None:
        """Prepare for `num_samples` samples; the first one shows the shapes."""
        self._specs, self._num_samples, self._row = specs, num_samples, 0
        self._tensors: dict[str, Any] = {}

    def add(self, sample: SampleOutputs) -> None:
        """Keep what the program returns for the next sample."""
        (values,) = sample.values.values()
        named = {spec.name: value for spec, value in zip(self._specs, values, strict=True)}
        if not self._tensors:
            paths.EVALUATED.mkdir(parents=True, exist_ok=True)
            file = beside(paths.EVALUATED / "outputs.safetensors")
            shapes = {
                name: RowSpec(shape=(self._num_samples, *value.shape), dtype=value.dtype.name)
                for name, value in named.items()
            }
            try:
                self._tensors = tensor_rows.create(file, shapes, {})
            finally:
                file.unlink(missing_ok=True)
        for name, value in named.items():
            self._tensors[name][self._row] = value
        self._row += 1

    @property
    def values(self) -> Mapping[str, Any]:
        """Output -> array [n x ...]; empty where nothing was kept."""
        return self._tensors
