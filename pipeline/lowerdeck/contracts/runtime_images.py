"""What a runtime on a device offers, and what a program requires of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

SINGLE_ROUNDING = "CMSIS_NN_USE_SINGLE_ROUNDING"
"""Compile definition with which CMSIS-NN rounds once where it rescales sums to int8, and not twice."""
_ROUNDED = ("conv2d", "depthwise_conv2d", "transpose_conv2d", "linear", "batch_matmul", "add", "mul")
KERNEL_DEFINITIONS: Mapping[str, tuple[str, ...]] = {
    SINGLE_ROUNDING: tuple(f"cortex_m::quantized_{name}" for name in _ROUNDED)
}
"""Compile definition that changes results -> beginnings of the names of the operators whose kernels it changes."""


def definitions_for(operators: Iterable[str], definitions: Sequence[str]) -> tuple[str, ...]:
    """Those of `definitions` that change what kernels of `operators` compute."""
    names = tuple(operators)
    return tuple(each for each in definitions if any(name.startswith(KERNEL_DEFINITIONS[each]) for name in names))


@dataclass(frozen=True, kw_only=True)
class RuntimeImage:
    """A runtime as it was built: a firmware image, a runner, or ExecuTorch's wheel."""

    name: str
    version: str
    sha256: str | None
    """SHA-256 of the image; None where it is no single file."""
    operators: Mapping[str, int | None]
    """Operator, e.g. `aten::add.out` -> number of arguments that its kernel expects, None where unknown."""
    delegates: Sequence[str]
    """Backend ids, e.g. `XnnpackBackend`."""
    schema_identifiers: Sequence[str] = ("ET12",)
    """File identifiers of programs that it reads."""
    max_program_bytes: int | None = None
    """Largest program that it has room for; None where it is not bounded."""
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    """Memory by purpose: `method` (a method's values, planned memory and inputs), `temporary`."""
    kernel_definitions: Sequence[str] = ()
    """The KERNEL_DEFINITIONS that its kernels were built with."""


@dataclass(frozen=True, kw_only=True)
class OperatorUse:
    """How a program calls one operator."""

    name: str
    num_args: int
    """Arguments of its calls, outputs included."""
    dtypes: tuple[str, ...]
    """Element types of its tensor arguments, sorted."""
    dim_orders: tuple[tuple[int, ...], ...]
    """Their orders of dimensions, sorted."""


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """What a program requires of a runtime."""

    schema_identifier: str
    operators: Sequence[OperatorUse]
    delegates: Mapping[str, int]
    """Backend id -> number of partitions."""
    planned_bytes: Sequence[int]
    """Size of each arena of planned memory."""
    input_bytes: int
    """All inputs of the method that needs most."""
    program_bytes: int
    alignment_bytes: int
    """Alignment of the program in memory."""
    kernel_definitions: Sequence[str] = ()
    """The KERNEL_DEFINITIONS that its kernels must be built with, to compute what the build was checked for. The `.pte`
    does not state them, its manifest does."""
