"""The delegation plan: where every node of the edge program runs, and if not on the delegate, why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from lowerdeck.contracts.converter import Converter
from lowerdeck.contracts.errors import LowerdeckError


class ReasonCode(StrEnum):
    """Why a node is not delegated: one closed list for all backends, so that their plans can be compared."""

    EXCLUDED = "excluded"
    """A configuration option keeps it, or its quantize/dequantize cluster, off the delegate."""
    WRONG_RESULT = "wrong_result"
    """Delegated, it computes something else than the quantized model; convert measured it."""
    NOT_COMPILED = "not_compiled"
    """The partitioner fails on it, or accepts it and the backend's compiler fails on it; the steps tried."""
    USER_CHECK = "user_check"
    """A user's check, named in the configuration, refused it."""
    NO_CONVERTER = "no_converter"
    """The backend does not implement the operator."""
    NOT_QUANTIZED = "not_quantized"
    """The backend computes on integers only, and the node is in no quantize/dequantize cluster."""
    DTYPE = "dtype"
    """The backend does not support the operator for these dtypes or this quantization."""
    SHAPE = "shape"
    """The backend does not support the operator for tensors of this rank or these sizes."""
    DYNAMIC_SHAPE = "dynamic_shape"
    """The backend needs a size that is known only at run time."""
    NOT_CONSTANT = "not_constant"
    """A weight, bias or other argument would have to be a constant."""
    CONSTRAINT = "constraint"
    """The backend does not support the operator with these arguments (stride, groups, dim, ...)."""
    TARGET_CONSTRAINT = "target_constraint"
    """The backend supports it with these arguments, but not on this device."""
    NEIGHBOUR = "neighbour"
    """It belongs to a node that stays on the CPU: its quantize, dequantize or getitem, or a node fused with it."""
    BOUNDARY = "boundary"
    """It would only convert number formats at the edge of a partition; the CPU does that."""
    NO_OP_PARTITION = "no_op_partition"
    """Its partition would have computed nothing."""
    PARTITIONING = "partitioning"
    """Supported by itself, but left out of all partitions, e.g. because one would depend on itself."""
    UNKNOWN = "unknown"
    """The backend reported no reason."""


CMSIS_NN, PORTABLE = "cmsis_nn", "portable"
"""Kernel libraries of the CPU, as `PlannedNode.processor` names them."""
_LIBRARIES = {CMSIS_NN: "CMSIS-NN", PORTABLE: "portable kernels"}


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why one node is not delegated."""

    code: ReasonCode
    message: str
    """The backend's own message where it has one, e.g. `groups=4, out_channels=6: not divisible`."""
    check: str = ""
    """The check that refused it, e.g. `ConvolutionConverter._is_supported_on_target`; may be empty."""
    values: Mapping[str, object] = field(default_factory=dict)
    """The decisive values, by argument or property: numbers, strings, and lists of these."""
    node: str = ""
    """The other node that caused the decision, if any (`neighbour`, `excluded`)."""

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


@dataclass(frozen=True, kw_only=True)
class PlannedTensor:
    """An input or output tensor of a node."""

    source: str
    """The node that computes it, or the placeholder of an input, parameter, buffer or constant."""
    shape: tuple[int, ...]
    """Sizes; the upper bound where a size varies."""
    dtype: str
    """E.g. `float32`."""
    size_bytes: int
    is_constant: bool = False
    """Whether it is a parameter, constant or buffer that the program does not write."""
    is_dynamic: bool = False
    """Whether a size varies from call to call."""

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class PlannedNode:
    """One node of the edge program and where it runs."""

    name: str
    """Name in the edge program's graph."""
    operator: str
    """E.g. `aten.convolution.default`."""
    compute: bool
    """False for nodes that only move values or convert number formats: getitem, quantize and dequantize."""
    partition: str | None
    """Delegation tag, None where the node stays on the CPU."""
    module: str
    """Path of its module, e.g. `features.0.conv`; empty where unknown."""
    source: str = ""
    """File and line of the model's code, e.g. `resnet8.py:41`; empty where unknown."""
    inputs: tuple[PlannedTensor, ...] = ()
    outputs: tuple[PlannedTensor, ...] = ()
    macs: int = 0
    """Multiply-accumulate operations per inference; 0 for operators without matrix multiplication."""
    is_quantized: bool = False
    """Whether it computes on quantized values: all computed inputs are dequantized, and either its result is quantized
    again, directly or after a fused activation function (then quantized too), or its weight is dequantized."""
    processor: str = ""
    """Who computes it: the delegate's processor (Backend.processor: `npu`, `xnnpack`), `cmsis_nn` or `portable`; empty
    for `delegate` or `portable`, by `partition`."""
    reason: Reason | None = None
    """Why it is left to portable kernels; None exactly where it is not. With `target.fallback`, why CMSIS-NN does not
    compute it either."""
    delegate_reason: Reason | None = None
    """With `target.fallback`, why the delegate leaves it to CMSIS-NN or to portable kernels."""
    excluded_by: str | None = None
    """Option and pattern of the configuration that keep it off the delegate, where that is the reason."""

    def __post_init__(self) -> None:
        if not self.processor:
            object.__setattr__(self, "processor", PORTABLE if self.partition is None else "delegate")

    @property
    def is_portable(self) -> bool:
        """Whether it is left to ExecuTorch's portable kernels."""
        return self.processor == PORTABLE

    @property
    def described(self) -> str:
        """The node for people: `aten_relu_default (aten.relu.default, layer1.0, resnet8.py:41)`."""
        return f"{self.name} ({', '.join(filter(None, (self.operator, self.module, self.source)))})"

    @property
    def place(self) -> str:
        """Where it runs, for people: its partition, `CMSIS-NN`, or `CPU` with portable kernels."""
        return self.partition or ("CPU" if self.is_portable else _LIBRARIES[self.processor])


@dataclass(frozen=True, kw_only=True)
class CompiledLayer:
    """One operator of a compiled partition, as its compiler predicts it."""

    name: str
    """Name in the graph that the compiler received; empty for what the compiler added."""
    operator: str
    """The compiler's kind of operator, e.g. `Conv2D`."""
    partition: int = 0
    """Position of its partition in the program."""
    cycles: int
    sram_bytes: int
    """Working memory while it runs."""
    macs: int = 0
    block: str = ""
    """Block that the NPU computes at once, height x width x channels; empty where the compiler does not state it."""


def listed(names: Sequence[str], most: int = 10) -> str:
    """Join up to `most` names with commas and count the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


@dataclass(frozen=True, kw_only=True)
class DelegationPlan:
    """For every node of the edge program who computes it, and if it is delegated, in which partition."""

    backend: str
    nodes: tuple[PlannedNode, ...]
    outputs: tuple[str, ...] = ()
    """Nodes whose results the program returns or writes into its buffers."""
    fallback: str | None = None
    """The backend of the kernel library that computes what the delegate leaves; None for portable kernels alone."""
    converter: Converter | None = None
    """The converter build that the plan is made for; None where it was not asked."""
    layers: tuple[CompiledLayer, ...] = ()
    """What the compiler made of the partitions, where it states it; none before convert."""
    mismatches: tuple[str, ...] = ()
    """What the program computes otherwise than the quantized model, with the measured errors, one line each. The
    configuration accepts it (`on_mismatch: warn`)."""

    @property
    def partitions(self) -> tuple[str, ...]:
        """Delegation tags in order of their first node."""
        return tuple(dict.fromkeys(node.partition for node in self.nodes if node.partition is not None))

    @property
    def places(self) -> tuple[str, ...]:
        """Where nodes run other than on portable kernels, as `PlannedNode.place` names it: partitions first."""
        return (*self.partitions, *(_LIBRARIES[library] for library in self.libraries))

    @property
    def compute_nodes(self) -> int:
        """Number of nodes that compute."""
        return sum(node.compute for node in self.nodes)

    @property
    def delegated_compute_nodes(self) -> int:
        """Number of nodes that compute and are delegated."""
        return sum(node.compute and node.partition is not None for node in self.nodes)

    @property
    def accelerated_compute_nodes(self) -> int:
        """Number of nodes that compute and are not left to portable kernels."""
        return sum(node.compute and not node.is_portable for node in self.nodes)

    @property
    def libraries(self) -> tuple[str, ...]:
        """Kernel libraries of the CPU that compute nodes, besides portable kernels."""
        return tuple(library for library in (CMSIS_NN,) if any(node.processor == library for node in self.nodes))

    @property
    def exclusions(self) -> tuple[str, ...]:
        """One line per configured pattern that keeps nodes off the delegate, with these nodes."""
        named: dict[str, list[str]] = {}
        for node in self.nodes:
            if node.excluded_by is not None:
                named.setdefault(node.excluded_by, []).append(node.name)
        return tuple(f"{pattern} keeps {len(names)} off: {listed(names)}" for pattern, names in named.items())

    @property
    def summary(self) -> str:
        """One line for the terminal."""
        partitions = "1 partition" if len(self.partitions) == 1 else f"{len(self.partitions)} partitions"
        delegated = f"{self.delegated_compute_nodes} of {self.compute_nodes} compute nodes delegated in {partitions}"
        on_library = [
            f"{sum(node.compute and node.processor == library for node in self.nodes)} of {self.compute_nodes} compute "
            f"nodes on {_LIBRARIES[library]}"
            for library in self.libraries
        ]
        return ", ".join([delegated, *on_library] if self.partitions or not on_library else on_library)


class NothingDelegatedError(LowerdeckError):
    """A backend delegates no node of a program; the message lists the reasons, and `plan` has them by node."""

    def __init__(self, message: str, plan: DelegationPlan) -> None:
        super().__init__(message)
        self.plan = plan
