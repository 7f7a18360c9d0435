"""A registered program, executed on the host: MLflow runs this file when it loads one (models from code).

The registered model contains this file and the whole package `lowerdeck`, so that loading needs nothing else of the
project. Nothing is pickled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import mlflow
import numpy as np
from mlflow.pyfunc.model import PythonModel, PythonModelContext

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.tracking.signature import names, takes_batches

if TYPE_CHECKING:
    import torch

    from lowerdeck.runtime.program import HostProgram

Array: TypeAlias = np.ndarray[Any, Any]
_BATCH_SIZE = 8
"""Samples executed at once; memory for activations grows with it."""


class RegisteredProgram(PythonModel):
    """A `.pte` with its manifest and host twins, executed as by `lowerdeck run`."""

    _program: HostProgram
    _inputs: list[str]
    _outputs: list[str]
    _takes_batches: bool

    def load_context(self, context: PythonModelContext) -> None:
        """Open the program.

        Raises:
            LowerdeckError: a file is damaged, or belongs to another program.
        """
        from lowerdeck.runtime.loading import open_program

        files = {name: Path(path) for name, path in context.artifacts.items()}
        self._program = open_program(files["program"], manifest=files["manifest"], twins=files["twins"])
        manifest = json.loads(files["manifest"].read_bytes())
        self._takes_batches = takes_batches(manifest)
        self._inputs, self._outputs = names(manifest["inputs"], "input"), names(manifest["outputs"], "output")

    def predict(
        self,
        context: PythonModelContext,
        model_input: np.ndarray,  # type: ignore[type-arg]  # a mapping too, but MLflow warns about any other hint
        params: dict[str, Any] | None = None,
    ) -> dict[str, Array]:
        """Execute the program for one sample, or for each of several.

        Args:
            context: Unused.
            model_input: Arrays with the element types and shapes of the signature: by input name, in order, or a single
                one for a program with one input. Where the signature has -1 as the first dimension, the program takes
                one sample, and b samples along it are executed in batches; of a program with state, they are
                consecutive calls.
            params: Unused.

        Returns:
            Outputs by name, unconverted: integers if the program was built to return integers. Those of several samples
            are joined along the first dimension.

        Raises:
            LowerdeckError: the arrays do not fit the program.
        """
        import torch

        # Copies, because the program may keep its inputs, and a caller's array may be read-only.
        tensors = [torch.from_numpy(np.array(array)) for array in self._in_order(model_input)]
        if (batch := self._batch(tensors)) is None:
            outputs = list(self._program(*tensors))
        else:
            outputs = [torch.cat(each) for each in zip(*self._calls(tensors, batch), strict=True)]
        return {name: np.asarray(output) for name, output in zip(self._outputs, outputs, strict=True)}

    def _batch(self, tensors: Sequence[torch.Tensor]) -> int | None:
        """Number of samples in `tensors`; None for one, or for a program that has no dimension for them."""
        sizes = {len(tensor) if tensor.dim() else 1 for tensor in tensors}
        (size,) = sizes if len(sizes) == 1 else (1,)
        return size if self._takes_batches and size > 1 else None

    def _calls(self, tensors: Sequence[torch.Tensor], batch: int) -> Iterator[tuple[Any, ...]]:
        samples = [tuple(tensor[row : row + 1] for tensor in tensors) for row in range(batch)]
        if self._program.has_state:
            yield from (self._program(*sample) for sample in samples)
            return
        for start in range(0, batch, _BATCH_SIZE):
            yield from self._program.calls(samples[start : start + _BATCH_SIZE])

    def _in_order(self, inputs: Array | Sequence[Array] | Mapping[str, Array]) -> Sequence[Array]:
        if isinstance(inputs, Mapping):
            if set(inputs) != set(self._inputs):
                raise LowerdeckError(
                    f"the inputs of the program are {', '.join(self._inputs)}; received: "
                    f"{', '.join(map(str, inputs)) or 'none'}"
                )
            return [inputs[name] for name in self._inputs]
        return inputs if isinstance(inputs, (list, tuple)) else [inputs]  # type: ignore[list-item]


mlflow.models.set_model(RegisteredProgram())
