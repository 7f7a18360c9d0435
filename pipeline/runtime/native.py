"""ExecuTorch's own runtime: executes programs whose delegates are built into the installed wheel."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from pipeline.contracts import LowerdeckError

# The operator library for undelegated quantize and dequantize has to be loaded beside the runtime itself.
_RUNTIME: Any = None


def can_execute(delegates: Iterable[str]) -> bool:
    """Whether the installed runtime has all of these delegates (backend ids, e.g. `XnnpackBackend`)."""
    return set(delegates) <= set(_runtime()._get_registered_backend_names())


class NativeProgram:
    """A `.pte` loaded into ExecuTorch's runtime; calling it executes its method `forward`."""

    def __init__(self, path: Path) -> None:
        """Load the program.

        Raises:
            LowerdeckError: the runtime refuses the file, with its reason.
        """
        self._bytes = path.read_bytes()  # the runtime keeps pointing into it
        try:
            self._module = _runtime()._load_for_executorch_from_buffer(self._bytes)
        except RuntimeError as error:
            raise LowerdeckError(f"{path} cannot be loaded by ExecuTorch's runtime: {error}") from error

    def __call__(self, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """First output for `inputs`, each a contiguous tensor of the shape and dtype that the program was made for."""
        outputs = self._module.run_method("forward", tuple(inputs))
        result: torch.Tensor = outputs[0]
        return result.clone()  # the runtime reuses its memory for the next call


def _runtime() -> Any:
    global _RUNTIME
    if _RUNTIME is None:
        import executorch.extension.pybindings._C as runtime
        import executorch.kernels.quantized  # noqa: F401

        _RUNTIME = runtime
    return _RUNTIME
