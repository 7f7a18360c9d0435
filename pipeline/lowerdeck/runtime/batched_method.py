"""Executes one method of a program for several samples at once.

Each sample has its own memory, laid out as the program plans it. Delegates whose twins can execute batches, Cortex-M's
operators, and others that yield the same bits for many samples as for one, run once for the batch; all others run
sample by sample.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeGuard, runtime_checkable

import torch

from lowerdeck.contracts.errors import LowerdeckError, ProgramError
from lowerdeck.contracts.runtime_images import SINGLE_ROUNDING
from lowerdeck.formats.pte import (
    STATIC,
    DelegateCall,
    JumpFalseCall,
    KernelCall,
    Method,
    MoveCall,
    TensorSpec,
)
from lowerdeck.runtime import cmsis_nn
from lowerdeck.runtime.exact.accumulate import exact_kernels
from lowerdeck.runtime.exact.cortex_m import COMPUTED, Step
from lowerdeck.runtime.exact.cortex_m import prepare as prepare_step
from lowerdeck.runtime.exact.nodes import UnsupportedGraphError
from lowerdeck.runtime.interpreter import VIEW, BoundMethod, Twin, described
from lowerdeck.runtime.operators import BATCHABLE, resolve
from lowerdeck.runtime.tensors import allocate_batch, same_bits


class BatchTwin(Protocol):
    """One partition, executed for a batch."""

    description: str
    num_inputs: int
    largest: int
    """Number of elements of its largest tensor for one sample."""

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs [b x sizes] for inputs [b x sizes], in the dimensions of the delegate call's arguments.

        Without inputs `b` is 1: the outputs are the same for all samples.
        """
        ...

    def cross_check(self, inputs: Sequence[torch.Tensor], rows: Sequence[int], what: str) -> list[torch.Tensor]:
        """As a call, and execute the samples `rows` by the reference too; `what` names the partition.

        Raises:
            LowerdeckError: the reference computes something else; the message has the first tensor that differs.
        """
        ...


@runtime_checkable
class BatchableTwin(Twin, Protocol):
    """A twin that may have an executor for batches."""

    def batched(self, device: torch.device) -> BatchTwin:
        """That executor, which yields the same integers; it computes on `device`, its arguments are on the CPU.

        Raises:
            UnsupportedGraphError: it lacks an operator of this partition.
        """
        ...


_FAULTS = (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError)
"""What an executor with a fault raises: PyTorch's operators and its own code."""


_WITHOUT_BATCHES = (
    "Report this as a bug of lowerdeck; `overrides: {evaluation: {engine: reference}}` executes one sample at a time"
)
_ELEMENT_BYTES = 4
_LARGEST_BYTES = {"cpu": 48 << 20, "cuda": 512 << 20}
"""Bound of a batch's largest tensor by device: larger ones take memory, and gain nothing on a CPU, little on a GPU."""


class UnbatchableError(Exception):
    """A method has to be executed sample by sample; the message says why."""


def gains_from_batches(method: Method, twins: Sequence[Twin]) -> bool:
    """Whether executing several samples at once is faster than one by one."""
    return any(map(is_batchable, twins)) or _has_cortex_m(method)


def _given(operator: str, call: KernelCall) -> Sequence[int]:
    """The inputs of one of Cortex-M's operators."""
    return call.args[: cmsis_nn.OPERATORS[operator][1]]


def _has_cortex_m(method: Method) -> bool:
    return not cmsis_nn.OPERATORS.keys().isdisjoint(method.operators)


def is_batchable(twin: Twin) -> TypeGuard[BatchableTwin]:
    """Whether a twin may have an executor for batches."""
    return isinstance(twin, BatchableTwin)


class BatchedMethod:
    """One method with memory for several samples."""

    def __init__(
        self, method: Method, twins: Sequence[Twin], device: torch.device, kernel_definitions: Sequence[str] = ()
    ) -> None:
        """Find out what can be executed at once.

        Args:
            method: The method.
            twins: One for each delegate, checked against the method's calls.
            device: Where to execute twins and Cortex-M's operators; everything else stays on the CPU.
            kernel_definitions: See `Interpreter`.

        Raises:
            UnbatchableError: it has state, control flow, tensors of dynamic shape or inputs that are no tensors.
        """
        _check_batchable(method)
        self._method, self._twins, self._definitions, self._device = method, twins, kernel_definitions, device
        opened = [_opened(twin, device) for twin in twins]
        self._batch, self._descriptions = [twin for twin, _ in opened], [description for _, description in opened]
        self._faults: dict[int, str] = {}
        self._has_kernels = _has_cortex_m(method)
        sizes = [twin.largest for twin in self._batch if twin is not None]
        if self._has_kernels:
            computed = (each for each in method.values if isinstance(each, TensorSpec) and not each.is_constant)
            sizes += [math.prod(each.sizes) for each in computed]
        largest = max(sizes, default=1)
        self.most_samples = max(1, _LARGEST_BYTES[device.type] // (_ELEMENT_BYTES * max(1, largest)))
        """Most samples to execute at once, so that the memory of a batch is bounded."""
        self._viewed = frozenset(
            instruction.args[2]
            for chain in method.chains
            for instruction in chain
            if isinstance(instruction, KernelCall) and method.operators[instruction.operator] == VIEW
        )
        """Tensors that become views of others during a call, and so leave their own memory."""
        self._samples: list[BoundMethod] = []
        self._tensors: list[torch.Tensor | None] = []
        self._constants: dict[int, torch.Tensor] = {}
        self._prepared: dict[tuple[int, int], Step | None] = {}

    @property
    def description(self) -> str:
        """Name of the executor, with what a twin lacks, and how its executor failed."""
        return f"{described(self._descriptions)}{', those of Cortex-M in batches' if self._has_kernels else ''}"

    @property
    def is_exact(self) -> bool:
        """Whether anything is executed by something else than the reference."""
        return self._has_kernels or any(twin is not None for twin in self._batch)

    @property
    def faults(self) -> Mapping[int, str]:
        """How the executors of partitions failed, by number of the partition; the reference executes these since."""
        return dict(self._faults)

    def leave_to_reference(self, faults: Mapping[int, str]) -> None:
        """Execute partitions by their references from now on, because their executors failed (see `faults`)."""
        for partition, fault in faults.items():
            if partition not in self._faults:
                self._faults[partition], self._batch[partition] = fault, None
                self._descriptions[partition] = _failed(self._twins[partition], fault)

    def run(
        self, samples: Sequence[Sequence[torch.Tensor]], *, cross_check: Sequence[int] = ()
    ) -> list[tuple[Any, ...]]:
        """Outputs of every sample, in as many batches as memory makes necessary.

        Args:
            samples: Inputs of each sample.
            cross_check: Numbers of the samples for which to execute every partition by its reference as well.

        Raises:
            ProgramError: an instruction failed.
            LowerdeckError: the reference computes something else, or the GPU has no room for one sample.
        """
        outputs: list[tuple[Any, ...]] = []
        while len(outputs) < len(samples):
            start = len(outputs)
            batch = samples[start : start + self.most_samples]
            try:
                outputs += self._executed(batch, [row - start for row in cross_check if 0 <= row - start < len(batch)])
            except torch.OutOfMemoryError as error:
                if len(batch) == 1:
                    raise _no_room(error) from error
                self.most_samples = len(batch) // 2
        return outputs

    def _executed(self, samples: Sequence[Sequence[torch.Tensor]], cross_check: Sequence[int]) -> list[tuple[Any, ...]]:
        """Outputs of one batch."""
        self._allocate(len(samples))
        for bound, inputs in zip(self._samples, samples, strict=True):
            for index, value in zip(self._method.inputs, inputs, strict=True):
                bound.store(index, value)
        for chain, instructions in enumerate(self._method.chains):
            for position in range(len(instructions)):
                if not self._is_done_at_once(chain, position, cross_check):
                    for bound in self._samples:
                        bound.step(chain, position)
        return [tuple(bound.output(index) for index in self._method.outputs) for bound in self._samples]

    def _allocate(self, batch: int) -> None:
        """Memory for `batch` samples, kept for the next batch of this size."""
        if len(self._samples) == batch:
            return
        self._tensors = allocate_batch(self._method, batch)
        self._samples = [
            BoundMethod(
                self._method,
                self._twins,
                [None if each is None else each[row] for each in self._tensors],
                self._definitions,
            )
            for row in range(batch)
        ]

    def _is_done_at_once(self, chain: int, position: int, cross_check: Sequence[int]) -> bool:
        """Execute an instruction for the batch; False where that is not possible, or failed."""
        instruction = self._method.chains[chain][position]
        if isinstance(instruction, DelegateCall) and (twin := self._batch[instruction.delegate]) is not None:
            return self._is_delegated(twin, instruction, cross_check)
        if not isinstance(instruction, KernelCall):
            return False
        operator = self._method.operators[instruction.operator]
        if operator in cmsis_nn.OPERATORS and any(map(self._is_computed, _given(operator, instruction))):
            result = self._by_cortex_m(chain, position, instruction)
        elif operator in BATCHABLE and not self._moved.intersection(instruction.args):
            result = self._by_element(instruction)
        else:
            return False
        target = instruction.args[resolve(operator, self._definitions).outputs[0]]
        for row in cross_check:
            self._samples[row].step(chain, position)
            alone = self._read(target)[row]
            if not same_bits(alone, torch.empty_like(alone).copy_(result[row])):
                raise LowerdeckError(
                    f"{operator}: a batch differs from a sample alone in value {target} of the program. "
                    f"{_WITHOUT_BATCHES}"
                )
        self._write(target, result)
        return True

    @property
    def _moved(self) -> frozenset[int]:
        """Values that are not in the memory of the batch."""
        return self._viewed | self._samples[0].replaced

    def _is_delegated(self, twin: BatchTwin, call: DelegateCall, cross_check: Sequence[int]) -> bool:
        """Execute a partition; False where its executor fails, which the reference replaces for good."""
        inputs = [self._read(index) for index in call.args[: twin.num_inputs]]
        what = f"partition {call.delegate} for {self._method.delegates[call.delegate].backend}"
        try:
            outputs = twin.cross_check(inputs, cross_check, what) if cross_check else twin(inputs)
        except torch.OutOfMemoryError:
            raise
        except _FAULTS as error:
            self.leave_to_reference({call.delegate: _fault(error)})
            return False
        for index, output in zip(call.args[twin.num_inputs :], outputs, strict=True):
            # One sample where the partition has no inputs, and so computes the same for all.
            self._write(index, output.expand(len(self._samples), *output.shape[1:]))
        return True

    def _by_element(self, call: KernelCall) -> torch.Tensor:
        """The result [b x sizes] of an operator that computes each element from one of its first argument."""
        kernel = resolve(self._method.operators[call.operator])
        keywords, positional = {}, []
        for position, name in enumerate(kernel.keywords):
            if position not in kernel.outputs:
                value = self._samples[0].values[call.args[position]]
                if name is None:
                    positional.append(value)
                else:
                    keywords[name] = value
        result: torch.Tensor = kernel.function(self._read(call.args[0]), *positional[1:], **keywords)
        return result

    def _by_cortex_m(self, chain: int, position: int, call: KernelCall) -> torch.Tensor:
        """The result [b x sizes] of an operator that computes integers, or each element by itself.

        Raises:
            LowerdeckError: it failed.
        """
        operator = self._method.operators[call.operator]
        function, given = resolve(operator, self._definitions).function, _given(operator, call)
        try:
            with exact_kernels():
                if (chain, position) not in self._prepared:
                    self._prepared[chain, position] = self._cortex_m_step(operator, given)
                if (step := self._prepared[chain, position]) is not None:
                    result = step([self._argument(index, of_batch=True) for index in given])
                else:
                    dimensions = tuple(0 if self._is_computed(index) else None for index in given)
                    at_once = torch.vmap(function, in_dims=dimensions)
                    result = at_once(*[self._argument(index, of_batch=False) for index in given])
            return result.cpu()
        except torch.OutOfMemoryError:
            raise
        except _FAULTS as error:
            raise LowerdeckError(f"{operator}: a batch failed, {_fault(error)}. {_WITHOUT_BATCHES}") from error

    def _cortex_m_step(self, operator: str, given: Sequence[int]) -> Step | None:
        arguments = [COMPUTED if self._is_computed(index) else self._samples[0].argument(index) for index in given]
        first = self._method.values[given[0]]
        assert isinstance(first, TensorSpec), "all operators take a tensor first"
        once = SINGLE_ROUNDING in self._definitions
        return prepare_step(operator, arguments, first.sizes, self._device, rounds_once=once)

    def _is_computed(self, index: int) -> bool:
        """Whether a value is a tensor that each sample has for itself."""
        spec = self._method.values[index]
        return isinstance(spec, TensorSpec) and not spec.is_constant

    def _argument(self, index: int, *, of_batch: bool) -> Any:
        """An argument; constant tensors are [1 x sizes] where they are to be like those `of_batch`."""
        if self._is_computed(index):
            return self._read(index).to(self._device)
        if not isinstance(self._method.values[index], TensorSpec):
            return self._samples[0].argument(index)
        if index not in self._constants:
            self._constants[index] = self._samples[0].values[index].to(self._device)
        return self._constants[index][None] if of_batch else self._constants[index]

    def _read(self, index: int) -> torch.Tensor:
        """A tensor value of all samples [b x sizes]."""
        if index in self._moved:
            return torch.stack([bound.values[index] for bound in self._samples])
        tensor = self._tensors[index]
        assert tensor is not None, "a delegate's arguments are tensors"
        return tensor

    def _write(self, index: int, values: torch.Tensor) -> None:
        if index in self._moved:
            for bound, value in zip(self._samples, values, strict=True):
                bound.store(index, value)
            return
        self._read(index).copy_(values)


def _check_batchable(method: Method) -> None:
    """Raise UnbatchableError unless every call of the method executes the same instructions on new data."""
    tensors = [value for value in method.values if isinstance(value, TensorSpec)]
    if any(tensor.is_state for tensor in tensors):
        raise UnbatchableError("it has state")
    if any(tensor.dynamism != STATIC for tensor in tensors):
        raise UnbatchableError("it has tensors of dynamic shape")
    if any(isinstance(each, (JumpFalseCall, MoveCall)) for chain in method.chains for each in chain):
        raise UnbatchableError("it has control flow")
    if not all(isinstance(method.values[index], TensorSpec) for index in method.inputs):
        raise UnbatchableError("it takes inputs that are no tensors")


def _opened(twin: Twin, device: torch.device) -> tuple[BatchTwin | None, str]:
    """A twin's executor for batches and its description; None with the reason where it has none.

    Raises:
        ProgramError: its graph is damaged.
    """
    if not is_batchable(twin):
        return None, twin.description
    try:
        opened = twin.batched(device)
    except UnsupportedGraphError as error:
        return None, f"{twin.description} (the exact executor lacks this: {error})"
    except ValueError as error:
        raise ProgramError(f"a host twin cannot be executed in batches: {error}") from error
    except torch.OutOfMemoryError as error:
        raise _no_room(error) from error
    except _FAULTS as error:
        return None, _failed(twin, _fault(error))
    return opened, opened.description


def _no_room(error: Exception) -> LowerdeckError:
    return LowerdeckError(
        "the GPU's memory does not hold the program and one sample; end what else uses it, or let the CPU execute all: "
        f"`overrides: {{evaluation: {{device: cpu}}}}` gives the same metrics. {_fault(error)}"
    )


def _fault(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _failed(twin: Twin, fault: str) -> str:
    """Description of a twin that is executed by its reference after a fault."""
    return f"{twin.description} (the exact executor failed, report this as a bug of lowerdeck: {fault})"
