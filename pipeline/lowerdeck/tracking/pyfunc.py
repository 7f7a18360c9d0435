"""A registered program, executed on the host: MLflow runs this file when it loads one (models from code).

The registered model contains this file and the whole package `lowerdeck`, so that loading needs nothing else of the
project. Nothing is pickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import mlflow
import numpy as np
from mlflow.pyfunc.model import PythonModel, PythonModelContext

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.tracking.signature import names

if TYPE_CHECKING:
    from lowerdeck.runtime.program import HostProgram

Array: TypeAlias = np.ndarray[Any, Any]


class RegisteredProgram(PythonModel):
    """A `.pte` with its manifest and host twins, executed as by `lowerdeck run`."""

    _program: HostProgram
    _inputs: list[str]
    _outputs: list[str]

    def load_context(self, context: PythonModelContext) -> None:
        """Open the program.

        Raises:
            LowerdeckError: a file is damaged, or belongs to another program.
        """
        from lowerdeck.runtime.loading import open_program

        files = {name: Path(path) for name, path in context.artifacts.items()}
        self._program = open_program(files["program"], manifest=files["manifest"], twins=files["twins"])
        manifest = json.loads(files["manifest"].read_bytes())
        self._inputs, self._outputs = names(manifest["inputs"], "input"), names(manifest["outputs"], "output")

    def predict(
        self,
        context: PythonModelContext,
        model_input: np.ndarray,  # type: ignore[type-arg]  # a mapping too, but MLflow warns about any other hint
        params: dict[str, Any] | None = None,
    ) -> dict[str, Array]:
        """Execute the program once.

        Args:
            context: Unused.
            model_input: Arrays with the element types and shapes of the signature: by input name, in order, or a single
                one for a program with one input.
            params: Unused.

        Returns:
            Outputs by name, unconverted: integers if the program was built to return integers.

        Raises:
            LowerdeckError: the arrays do not fit the program.
        """
        import torch

        # Copies, because the program may keep its inputs, and a caller's array may be read-only.
        tensors = [torch.from_numpy(np.array(array)) for array in self._in_order(model_input)]
        outputs = self._program(*tensors)
        return {name: np.asarray(output) for name, output in zip(self._outputs, outputs, strict=True)}

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
