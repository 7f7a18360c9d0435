"""A registered program, executed on the host: MLflow runs this file when it loads one (models from code).

It is stored beside the program in the registered model, with a copy of the package `lowerdeck`, so that a process needs
nothing of the project to load it. Nothing is pickled.
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
    """A `.pte` with its manifest and host twins, as `lowerdeck run` executes it."""

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
            context: Not used here.
            model_input: Arrays by the names of inputs, in their order, or one for a program with a single input; with
                the element types and shapes of the signature.
            params: There are none.

        Returns:
            Outputs by name, unconverted: integers where the program was built to return integers.

        Raises:
            LowerdeckError: the arrays do not fit the program.
        """
        import torch

        # Copies: the program may keep what it is given, and a caller's array may be read-only.
        tensors = [torch.from_numpy(np.array(array)) for array in self._in_order(model_input)]
        answers = self._program(*tensors)
        return {name: np.asarray(answer) for name, answer in zip(self._outputs, answers, strict=True)}

    def _in_order(self, given: Array | Sequence[Array] | Mapping[str, Array]) -> Sequence[Array]:
        if isinstance(given, Mapping):
            if set(given) != set(self._inputs):
                raise LowerdeckError(
                    f"the program takes {', '.join(self._inputs)}; given were {', '.join(map(str, given)) or 'none'}"
                )
            return [given[name] for name in self._inputs]
        return given if isinstance(given, (list, tuple)) else [given]  # type: ignore[list-item]


mlflow.models.set_model(RegisteredProgram())
