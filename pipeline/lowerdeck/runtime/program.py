"""A program that the host can execute: its inputs and outputs, and checks of arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.formats.pte import STATIC, Method, TensorSpec
from lowerdeck.runtime.batched_method import BatchedMethod, UnbatchableError
from lowerdeck.runtime.onednn import right_convolutions
from lowerdeck.runtime.tensors import dtype_of


@dataclass(frozen=True, kw_only=True)
class ValueInfo:
    """One input or output of a method."""

    index: int
    """Position among the inputs or outputs; a `.pte` stores no names."""
    kind: str
    """`tensor`, or `int`, `float`, `bool`, `str`, `none`, `list` for a plain value."""
    dtype: torch.dtype | None = None
    shape: tuple[int, ...] = ()
    """The upper bound where `is_dynamic`."""
    dim_order: tuple[int, ...] = ()
    """Dimensions from outermost to innermost in the program's memory; inputs may have any strides."""
    is_dynamic: bool = False
    """Whether shapes may be smaller."""
    value: Any = None
    """The plain value for which the program was exported."""

    def __str__(self) -> str:
        if self.kind != "tensor":
            return self.kind
        layout = "" if self.dim_order == tuple(range(len(self.shape))) else f" in order {list(self.dim_order)}"
        bound = "up to " if self.is_dynamic else ""
        return f"{str(self.dtype).removeprefix('torch.')} {bound}{list(self.shape)}{layout}"


@dataclass(frozen=True, kw_only=True)
class MethodInfo:
    """Inputs, outputs and delegates of a method."""

    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]
    delegates: tuple[str, ...]
    """Backend ids, one for each partition."""


class Engine(Protocol):
    """Executes methods."""

    description: str
    has_threads: bool
    """Whether it has threads, which a forked process would lack."""

    def run(self, method: str, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Outputs of `method` for valid `inputs`."""
        ...

    def reset(self) -> None:
        """Return to the state of a program that was just loaded."""
        ...

    def batched(self, method: str) -> BatchedMethod | None:
        """`method` for several samples at once; None where calls one by one are as fast.

        Raises:
            UnbatchableError: it has state or control flow.
        """
        ...


class HostProgram:
    """A `.pte` that is ready to be called.

    Its state (buffers that the program itself modifies) lasts from call to call, as in ExecuTorch's runtime, until
    `reset`. A program without state returns the same bytes for the same inputs. Only one thread at a time may call it.
    """

    def __init__(self, methods: Sequence[Method], engine: Engine) -> None:
        self.methods: Mapping[str, MethodInfo] = {method.name: method_info(method) for method in methods}
        self.executor = engine.description
        """Name of the executor, e.g. `ExecuTorch runtime`."""
        self._engine = engine
        self.has_state = any(
            isinstance(value, TensorSpec) and value.is_state for method in methods for value in method.values
        )
        """Whether the result of a call depends on those before it."""
        self._batches: dict[str, BatchedMethod | UnbatchableError | None] = {}

    def reset(self) -> None:
        """Give the state its initial values again, as after loading."""
        if self.has_state:
            self._engine.reset()

    @property
    def can_fork(self) -> bool:
        """Whether a process forked from this one can call the program."""
        return not self._engine.has_threads

    @property
    def delegates(self) -> tuple[str, ...]:
        """Backend ids of all methods' delegates, one for each partition."""
        return tuple(delegate for method in self.methods.values() for delegate in method.delegates)

    def __call__(self, *inputs: Any, method: str = "forward") -> tuple[Any, ...]:
        """Execute a method; host twins are executed by their references.

        Args:
            inputs: Tensors (and plain numbers, where the method takes some) in order, or one tuple or list of them.
            method: Name of the method.

        Returns:
            All outputs; later calls leave them unchanged.

        Raises:
            LowerdeckError: the method does not exist, the inputs do not fit it, or an operator failed.
        """
        if len(inputs) == 1 and isinstance(inputs[0], (tuple, list)):
            inputs = tuple(inputs[0])
        inputs = self._checked(method, inputs)
        with torch.no_grad(), right_convolutions():
            return self._engine.run(method, inputs)

    def calls(
        self, samples: Sequence[Sequence[Any]], *, method: str = "forward", cross_check: Sequence[int] = ()
    ) -> list[tuple[Any, ...]]:
        """Execute a method for several samples, all at once where that is possible; see `batch_executor`.

        Args:
            samples: Inputs of each sample. Memory is taken for as many as `most_samples` says.
            method: Name of the method.
            cross_check: Numbers of the samples for which to execute every partition by its reference as well.

        Returns:
            What the program returns for each sample after `reset`.

        Raises:
            LowerdeckError: see `__call__`, or the reference of a partition computes something else.
        """
        samples = [self._checked(method, inputs) for inputs in samples]
        batched = self._batched(method)
        if isinstance(batched, BatchedMethod):
            with torch.no_grad(), right_convolutions():
                return batched.run(samples, cross_check=cross_check)
        outputs = []
        for inputs in samples:
            self.reset()
            outputs.append(self(inputs, method=method))
        return outputs

    def batch_executor(self, method: str = "forward") -> str:
        """Name of the executor of `calls`, with the reason where it executes sample by sample."""
        batched = self._batched(method)
        if isinstance(batched, BatchedMethod):
            return batched.description
        return self.executor if batched is None else f"{self.executor} (sample by sample, because {batched})"

    def is_cross_checkable(self, method: str = "forward") -> bool:
        """Whether `calls` executes any partition by something else than its reference."""
        batched = self._batched(method)
        return isinstance(batched, BatchedMethod) and batched.is_exact

    def faults(self, method: str = "forward") -> Mapping[int, str]:
        """How exact executors failed in `calls`, by number of the partition; its reference executes it since then."""
        batched = self._batched(method)
        return batched.faults if isinstance(batched, BatchedMethod) else {}

    def leave_to_reference(self, faults: Mapping[int, str], method: str = "forward") -> None:
        """Let `calls` execute partitions by their references, after these `faults` in a forked process."""
        batched = self._batched(method)
        if isinstance(batched, BatchedMethod):
            batched.leave_to_reference(faults)

    def most_samples(self, method: str = "forward") -> int | None:
        """Most samples to give `calls` at once, so that its memory is bounded; None where it executes one by one."""
        batched = self._batched(method)
        return batched.most_samples if isinstance(batched, BatchedMethod) else None

    def _batched(self, method: str) -> BatchedMethod | UnbatchableError | None:
        """The method for batches; the reason why there is none, or None where it would gain nothing."""
        if method not in self._batches:
            try:
                self._batches[method] = self._engine.batched(method)
            except UnbatchableError as error:
                self._batches[method] = error
        return self._batches[method]

    def _checked(self, method: str, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """`inputs` as engines take them; raises LowerdeckError unless they fit the method."""
        if method not in self.methods:
            raise LowerdeckError(f"the program has no method {method!r}; it has: {', '.join(self.methods)}")
        return check_inputs(self.methods[method].inputs, inputs, method)


def check_inputs(expected: Sequence[ValueInfo], inputs: Sequence[Any], method: str) -> tuple[Any, ...]:
    """`inputs`, with parameters and tensors of other classes as plain tensors on the same memory.

    Raises:
        LowerdeckError: they are not what the method of this name expects, or have no memory of the CPU's to be read.
    """
    if len(inputs) != len(expected):
        raise LowerdeckError(
            f"method {method!r} takes {len(expected)} inputs and got {len(inputs)}; it takes "
            f"{'; '.join(map(str, expected)) or 'none'}"
        )
    return tuple(_checked_input(info, given, method) for info, given in zip(expected, inputs, strict=True))


def method_info(method: Method) -> MethodInfo:
    """Describe `method`."""
    return MethodInfo(
        inputs=tuple(_value_info(position, method.values[index]) for position, index in enumerate(method.inputs)),
        outputs=tuple(_value_info(position, method.values[index]) for position, index in enumerate(method.outputs)),
        delegates=tuple(delegate.backend for delegate in method.delegates),
    )


def _value_info(index: int, value: Any) -> ValueInfo:
    if isinstance(value, TensorSpec):
        return ValueInfo(
            index=index,
            kind="tensor",
            dtype=dtype_of(value),
            shape=value.sizes,
            dim_order=value.dim_order,
            is_dynamic=value.dynamism != STATIC,
        )
    kinds = {bool: "bool", int: "int", float: "float", str: "str", type(None): "none"}
    return ValueInfo(index=index, kind=kinds.get(type(value), "list"), value=value)


def _checked_input(info: ValueInfo, given: Any, method: str) -> Any:
    """`given` as engines take it; raises LowerdeckError unless it fits the input."""
    if info.kind != "tensor":
        _check_plain(info, given, method)
        return given
    if not isinstance(given, torch.Tensor):
        raise LowerdeckError(f"input {info.index} of {method!r} is a tensor, {info}; got {type(given).__name__}")
    if problem := _memory_problem(given):
        raise LowerdeckError(f"input {info.index} of {method!r} is {info}; got {problem}")
    if type(given) is not torch.Tensor:
        with torch._C.DisableTorchFunctionSubclass():
            given = given.as_subclass(torch.Tensor)
    if given.dtype == info.dtype and given.shape == info.shape:
        return given
    fits = given.dim() == len(info.shape) and all(map(int.__le__, given.shape, info.shape))
    if given.dtype != info.dtype or not (info.is_dynamic and fits):
        raise LowerdeckError(
            f"input {info.index} of {method!r} is {info}; got {str(given.dtype).removeprefix('torch.')} "
            f"{list(given.shape)}. Inputs are not converted or reshaped: pass what the program was exported for"
        )
    return given


def _memory_problem(given: torch.Tensor) -> str | None:
    """Why the runtime, which reads an address of the CPU's memory, cannot read `given`, with the way out; else None."""
    if torch._C._functorch.is_functorch_wrapped_tensor(given):
        return (
            "a tensor of torch.vmap, torch.func.grad or the like, which cannot look into a program. Call the program "
            "outside of it, sample by sample"
        )
    if given.layout is not torch.strided or given.is_nested:
        kind = "nested" if given.is_nested else str(given.layout).removeprefix("torch.").removeprefix("_")
        way = "each of its tensors (`unbind()`) in a call of its own" if given.is_nested else "`to_dense()` of it"
        return f"a tensor of the layout {kind}; pass {way}"
    if given.device.type != "cpu":
        way = "one with values" if given.device.type == "meta" else "`cpu()` of it"
        return f"a tensor on the device {given.device}; pass {way}"
    if torch._C._dispatch_keys(given).has(torch._C.DispatchKey.Python):
        return f"a {type(given).__name__}, which has no memory of its own; pass a plain tensor with its values"
    return None


def _check_plain(info: ValueInfo, given: Any, method: str) -> None:
    if type(given).__name__.replace("NoneType", "none") != info.kind:
        raise LowerdeckError(f"input {info.index} of {method!r} is a {info.kind}, got {type(given).__name__}")
    # Floats differ by less where they were stored as float32; ExecuTorch's runtime has the same tolerance.
    if info.kind == "float" and math.isclose(given, info.value, rel_tol=1e-5, abs_tol=1e-4):
        return
    if info.kind != "list" and given != info.value:
        raise LowerdeckError(
            f"input {info.index} of {method!r} is {given!r}; the program was exported for {info.value!r} and computes "
            "nothing else. Pass that, or export the model with the other value"
        )
