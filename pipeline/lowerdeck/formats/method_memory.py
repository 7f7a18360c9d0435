"""The memory that a program needs on the device, as far as it follows from the program itself."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lowerdeck.formats.pte import STATIC, Boxed, DelegateCall, KernelCall, Method, TensorSpec, read_pte

METHOD_ALLOCATOR_SOURCE = (
    "estimate: the allocations that Method::init of ExecuTorch 1.5 makes for values, tensors, delegates and "
    "instructions of the method, each rounded up to its alignment; without what delegates allocate in their own init"
)


@dataclass(frozen=True)
class _Sizes:
    """Sizes in bytes of the runtime's types (runtime/executor/method.cpp, runtime/core), by size of a pointer."""

    pointer: int
    value: int = 16  # EValue: 8 bytes of payload and a tag, also where pointers are small
    wide: int = 8  # int64_t and double

    @property
    def tensor(self) -> int:
        """TensorImpl: four pointers, three sizes, and four bytes of types and device."""
        return _align_up(7 * self.pointer + 4, self.pointer)

    @property
    def delegate(self) -> int:
        """BackendDelegate: flags, two pointers, and the FreeableBuffer of its payload."""
        return 10 * self.pointer + 8

    @property
    def compile_spec(self) -> int:
        """CompileSpec: a name, and a buffer with its length."""
        return 3 * self.pointer

    @property
    def list(self) -> int:
        """BoxedEvalueList or ArrayRef: two pointers and a length."""
        return 3 * self.pointer

    @property
    def chain(self) -> int:
        """Chain: two pointers and a span."""
        return 4 * self.pointer


def method_allocator_bytes(method: Method, pointer_bytes: int) -> int:
    """Estimate of the bytes that loading `method` takes from the method allocator.

    Args:
        method: The method in the `.pte`.
        pointer_bytes: 4 for Cortex-M, 8 for a 64-bit processor.
    """
    sizes = _Sizes(pointer_bytes)
    total = _align_up(len(method.values) * sizes.value, 8) + _align_up(len(method.inputs), sizes.pointer)
    total += sum(_value_bytes(value, sizes) for value in method.values)
    total += len(method.delegates) * (sizes.delegate + _MAX_COMPILE_SPECS * sizes.compile_spec)
    total += len(method.chains) * sizes.chain
    for instruction in itertools.chain(*method.chains):
        total += sizes.pointer + 2 * sizes.pointer  # a kernel and a span of arguments
        if isinstance(instruction, (KernelCall, DelegateCall)):
            total += len(instruction.args) * sizes.pointer
    return _align_up(total, 16)


_MAX_COMPILE_SPECS = 8
"""Assumed number of a delegate's compile specs; the project's backends write fewer."""


def planned_bytes(method: Method) -> dict[str, int]:
    """Size of each arena of planned memory, by its id; id 0 is reserved."""
    return {str(index): size for index, size in enumerate(method.arena_bytes) if index > 0}


@dataclass(frozen=True, kw_only=True)
class WorkingMemory:
    """All RAM that a program needs on its device while it runs, in the same terms on every backend."""

    planned_bytes: int
    """Activations, in all arenas."""
    scratch_bytes: int | None
    """The largest partition's scratch; None if the delegate does not say, 0 without delegates."""
    method_allocator_bytes: int
    """Estimate for the device's pointers, see METHOD_ALLOCATOR_SOURCE."""
    unknown: tuple[str, ...]
    """What comes on top and is known to nobody but the delegate."""

    @property
    def known_bytes(self) -> int:
        """The sum of what is known: the least that the device needs."""
        return self.planned_bytes + (self.scratch_bytes or 0) + self.method_allocator_bytes


_UNKNOWN_OF_DELEGATES = {
    "XnnpackBackend": "what XNNPACK allocates for packed weights and its workspace",
    "NeutronBackend": "the context of Neutron's driver",
}
_POINTER_BYTES = {"XnnpackBackend": 8}
"""Size of a pointer where a delegate is for application processors; microcontrollers have 4."""


def working_memory(program: bytes, scratch_bytes: Sequence[int | None], *, is_host_only: bool) -> WorkingMemory:
    """The RAM that the method `forward` of a `.pte` needs.

    Args:
        program: The program.
        scratch_bytes: Scratch of each partition; None where the payload does not say.
        is_host_only: Whether the converter is a stand-in, whose scratch means nothing on the device.
    """
    method = next(method for method in read_pte(program) if method.name == "forward")
    delegates = {delegate.backend for delegate in method.delegates}
    known = not is_host_only and all(size is not None for size in scratch_bytes)
    unknown = [text for name, text in _UNKNOWN_OF_DELEGATES.items() if name in delegates]
    if delegates and not known and "XnnpackBackend" not in delegates:
        unknown.append("the delegate's scratch")
    pointer_bytes = max((_POINTER_BYTES.get(name, 4) for name in delegates), default=4)
    return WorkingMemory(
        planned_bytes=sum(planned_bytes(method).values()),
        scratch_bytes=max((size or 0 for size in scratch_bytes), default=0) if known else None,
        method_allocator_bytes=method_allocator_bytes(method, pointer_bytes),
        unknown=tuple(unknown),
    )


def _value_bytes(value: Any, sizes: _Sizes) -> int:
    if isinstance(value, TensorSpec):
        strides, order = _align_up(4 * len(value.sizes), sizes.pointer), _align_up(len(value.sizes), sizes.pointer)
        own_sizes_and_order = strides + order if value.dynamism != STATIC else 0  # sizes need as much as strides
        return sizes.tensor + strides + own_sizes_and_order
    if isinstance(value, Boxed):
        return len(value.items) * (sizes.pointer + sizes.wide) + sizes.wide + sizes.list
    return sizes.list if isinstance(value, (tuple, str)) else 0


def _align_up(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
