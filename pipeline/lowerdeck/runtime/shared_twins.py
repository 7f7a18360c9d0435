"""Host twins that several programs of one process share.

A twin always computes the same outputs for the same inputs. So each is opened once for all calls with equal kinds of
tensors, and executed once for inputs that recur: those of a program's first partition, for example, are often those
that the partition was tried on alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from lowerdeck.formats.pte import Delegate, TensorSpec
from lowerdeck.runtime.batched_method import BatchTwin, is_batchable
from lowerdeck.runtime.interpreter import Twin
from lowerdeck.runtime.twins import open_made_twin

Tensors = Sequence[torch.Tensor]
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers by their bytes: tensors are compared as such, because 0.0 equals -0.0, and NaN does not equal itself."""


class SharedTwins:
    """The host twins of partitions that this process has compiled."""

    def __init__(self, stored: Mapping[bytes, bytes]) -> None:
        """Prepare.

        Args:
            stored: Payload of a delegate -> its host twin.
        """
        self._stored = stored
        self._num_inputs: dict[bytes, int] = {}
        self._opened: dict[tuple[bytes, str], _Calls] = {}

    def __contains__(self, payload: bytes) -> bool:
        """Whether the delegate with this payload has a twin."""
        return payload in self._stored

    def share(self, payload: bytes, num_inputs: int) -> None:
        """Share what is opened and computed for this payload from now on; its delegate takes `num_inputs` tensors."""
        self._num_inputs[payload] = num_inputs

    def opener(self, resolver: str, num_threads: int = 1) -> Callable[[Delegate], Twin]:
        """Opens the twin of a delegate; see `lowerdeck.runtime.loading.open_program` for the arguments."""

        def open_twin(delegate: Delegate) -> Twin:
            def opened() -> Twin:
                return open_made_twin(delegate, self._stored, resolver=resolver, num_threads=num_threads)

            payload = bytes(delegate.payload)
            if payload not in self._num_inputs:
                return opened()
            key = payload, resolver
            if key not in self._opened:
                self._opened[key] = _Calls(opened, self._num_inputs[payload])
            calls = self._opened[key]
            return _BatchableCall(calls) if calls.is_batchable else _Call(calls)

        return open_twin


class _Recalled:
    """Outputs of what was executed before, by its inputs."""

    def __init__(self) -> None:
        self._known: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []

    def find(self, inputs: Tensors) -> list[torch.Tensor] | None:
        """The outputs for equal inputs."""
        return next((outputs for known, outputs in self._known if all(map(_is_same, known, inputs))), None)

    def keep(self, inputs: Tensors, outputs: Tensors) -> None:
        """Remember tensors that nothing writes any more."""
        self._known.append((list(inputs), list(outputs)))


def _is_same(known: torch.Tensor, given: torch.Tensor) -> bool:
    bits = _BITS[known.itemsize]
    return torch.equal(known.view(bits), given.view(bits))


class _Opened:
    """A twin that is bound to the kinds of tensors that one or several calls pass."""

    def __init__(self, twin: Twin, num_inputs: int) -> None:
        self.twin, self._num_inputs = twin, num_inputs
        self._recalled = _Recalled()
        self._batched: dict[torch.device, _RecallingBatch] = {}

    def __call__(self, arguments: Tensors) -> None:
        inputs, outputs = arguments[: self._num_inputs], arguments[self._num_inputs :]
        found = self._recalled.find(inputs)
        if found is None:
            given = [tensor.clone() for tensor in inputs]
            self.twin(arguments)
            self._recalled.keep(given, [tensor.clone() for tensor in outputs])
            return
        for target, value in zip(outputs, found, strict=True):
            target.copy_(value)

    def batched(self, device: torch.device) -> BatchTwin:
        if device not in self._batched:
            assert is_batchable(self.twin)
            self._batched[device] = _RecallingBatch(self.twin.batched(device))
        return self._batched[device]


class _RecallingBatch:
    """A twin's executor for batches, which executes the samples that it has not executed before."""

    def __init__(self, twin: BatchTwin) -> None:
        self._twin, self._recalled = twin, _Recalled()
        self.description, self.num_inputs, self.largest = twin.description, twin.num_inputs, twin.largest

    def __call__(self, inputs: Tensors) -> list[torch.Tensor]:
        if not inputs:
            return self._twin(inputs)
        samples = [[tensor[row] for tensor in inputs] for row in range(len(inputs[0]))]
        found = [self._recalled.find(sample) for sample in samples]
        missing = [row for row, outputs in enumerate(found) if outputs is None]
        if missing:
            given = [tensor[missing] for tensor in inputs]  # a copy
            computed = self._twin(given)
            for index, row in enumerate(missing):
                found[row] = [tensor[index] for tensor in computed]
                self._recalled.keep([tensor[index] for tensor in given], [tensor[index] for tensor in computed])
        known = [outputs for outputs in found if outputs is not None]
        return [torch.stack([outputs[index] for outputs in known]) for index in range(len(known[0]))]

    def cross_check(self, inputs: Tensors, rows: Sequence[int], what: str) -> list[torch.Tensor]:
        return self._twin.cross_check(inputs, rows, what)


class _Calls:
    """The calls of delegates with one payload."""

    def __init__(self, open_twin: Callable[[], Twin], num_inputs: int) -> None:
        self._open, self._num_inputs = open_twin, num_inputs
        self._unbound: Twin | None = open_twin()
        self.description, self.is_batchable = self._unbound.description, is_batchable(self._unbound)
        self._bound: dict[tuple[object, ...], _Opened] = {}

    def bound(self, arguments: Sequence[TensorSpec]) -> _Opened:
        """The twin for calls with such arguments."""
        kinds = tuple((spec.scalar_type, spec.sizes, spec.dim_order) for spec in arguments)
        if kinds not in self._bound:
            twin, self._unbound = self._unbound or self._open(), None
            twin.check(arguments)
            self._bound[kinds] = _Opened(twin, self._num_inputs)
        return self._bound[kinds]


class _Call:
    """One call of a delegate in a program."""

    def __init__(self, calls: _Calls) -> None:
        self._calls, self.description = calls, calls.description
        self._opened: _Opened | None = None

    def check(self, arguments: Sequence[TensorSpec]) -> None:
        """Bind the twin to the arguments."""
        self._opened = self._calls.bound(arguments)

    def __call__(self, arguments: Tensors) -> None:
        """Execute the partition, unless it was for these inputs."""
        self.bound(arguments)

    @property
    def bound(self) -> _Opened:
        """The twin, which has been checked."""
        assert self._opened is not None, "a delegate's arguments are checked before it is called"
        return self._opened


class _BatchableCall(_Call):
    """One call of a delegate that may be executed for a batch."""

    def batched(self, device: torch.device) -> BatchTwin:
        """The executor for batches; see `lowerdeck.runtime.batched_method.BatchableTwin`."""
        return self.bound.batched(device)
