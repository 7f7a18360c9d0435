"""ExecuTorch's own runtime: executes programs whose delegates are built into the installed wheel.

The runtime is C++ code, and some errors abort its process. A file of unknown origin is therefore first executed once,
on zeros, in a separate process (probe.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from lowerdeck.contracts.errors import LowerdeckError, ProgramError
from lowerdeck.formats.pte import Method, TensorSpec
from lowerdeck.runtime.child_processes import crash_in_fork
from lowerdeck.runtime.messages import captured_messages, reason
from lowerdeck.runtime.probe import HINT, TIMEOUT_S, probe_native
from lowerdeck.runtime.tensors import strides_of

_RUNTIME: Any = None


def missing_delegates(delegates: Iterable[str]) -> list[str]:
    """The delegates (backend ids, e.g. `XnnpackBackend`) that the installed runtime lacks."""
    return sorted(set(delegates) - set(_runtime()._get_registered_backend_names()))


def missing_operators(operators: Iterable[str]) -> list[str]:
    """The operators (e.g. `aten::add.out`) that the installed runtime lacks."""
    return sorted(set(operators) - set(_runtime()._get_operator_names()))


class NativeEngine:
    """A program loaded into ExecuTorch's runtime."""

    description = "ExecuTorch runtime"
    has_threads = True

    def __init__(self, data: bytes, methods: Sequence[Method], *, probe: bool) -> None:
        """Load the program.

        Args:
            data: The `.pte`, structurally valid.
            methods: Its methods.
            probe: Execute it in a separate process first; unnecessary only for a file known to be intact.

        Raises:
            ProgramError: the runtime rejects the program, with its reason.
            LowerdeckError: it crashes in the separate process.
        """
        if probe:
            probe_native(data, methods)
        self._methods = {method.name: method for method in methods}
        self._bytes = data  # the runtime keeps pointers into it
        self.reset()

    def reset(self) -> None:
        """Load the program, again if it is loaded: the runtime has no other way to return to the initial state.

        Raises:
            LowerdeckError: the runtime rejects the file, with its reason.
        """
        try:
            with captured_messages() as messages:
                self._module = _runtime()._load_for_executorch_from_buffer(self._bytes)
        except RuntimeError as error:
            raise ProgramError(f"ExecuTorch's runtime cannot load the program: {reason(messages, error)}") from error

    def batched(self, method: str) -> None:
        """Nothing: the runtime executes one sample at a time."""

    def run(self, method: str, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Outputs of `method`, copied out of the runtime's memory.

        Raises:
            ProgramError: the runtime reports an error.
        """
        laid_out = _laid_out(self._methods[method], inputs)
        try:
            with captured_messages() as messages:
                return tuple(self._module.run_method(method, laid_out, clone_outputs=True))
        except RuntimeError as error:
            raise ProgramError(
                f"ExecuTorch's runtime failed in method {method!r}: {reason(messages, error)}{HINT}"
            ) from error


def native_crash(data: bytes, method: Method, inputs: Sequence[Any]) -> str | None:
    """How ExecuTorch's runtime ends its process, a fork of this one, when it executes a method: signal and reason.

    The runtime replaces its threads in a fork.

    Args:
        data: The `.pte` of this build.
        method: Its method.
        inputs: Those of the method.

    Returns:
        None where the process ends by itself, also where the runtime reports an error.

    Raises:
        MemoryError: it had no memory left.
        LowerdeckError: it did not end in ten minutes.
    """

    def execute() -> None:
        _runtime()._load_for_executorch_from_buffer(data).run_method(method.name, _laid_out(method, inputs))

    try:
        return crash_in_fork(execute, TIMEOUT_S)
    except TimeoutError as error:
        raise LowerdeckError(f"ExecuTorch's runtime did not execute the program once within {TIMEOUT_S:g} s") from error


def _laid_out(method: Method, inputs: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        _to_dim_order(value, spec) if isinstance(spec := method.values[index], TensorSpec) else value
        for value, index in zip(inputs, method.inputs, strict=True)
    )


def _to_dim_order(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """`tensor` in the memory layout of the program, because the runtime rejects others."""
    strides = strides_of(tensor.shape, spec.dim_order)
    if tensor.stride() == strides and not tensor.requires_grad:
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)


def _runtime() -> Any:
    """The runtime, with the operators for undelegated quantize and dequantize registered."""
    global _RUNTIME
    if _RUNTIME is None:
        # Neither imports executorch.exir: together they take milliseconds beyond torch.
        import executorch.kernels.quantized  # noqa: F401
        from executorch.extension.pybindings import _C

        _RUNTIME = _C
    return _RUNTIME
