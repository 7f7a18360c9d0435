"""The delegation plan: for every node of the edge program where it runs, and if not on the delegate, why."""

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
    """An option of the configuration keeps it off the delegate, or its quantize/dequantize cluster."""
    USER_CHECK = "user_check"
    """A check of the user's own, named in the configuration, refused it."""
    NO_CONVERTER = "no_converter"
    """The backend has no implementation of the operator."""
    NOT_QUANTIZED = "not_quantized"
    """The backend computes in integers alone, and the node is in no quantize/dequantize cluster."""
    DTYPE = "dtype"
    """The backend has the operator, but not for these dtypes or this quantization."""
    SHAPE = "shape"
    """The backend has the operator, but not for tensors of this rank or these sizes."""
    DYNAMIC_SHAPE = "dynamic_shape"
    """The backend needs a size that is only known when the program runs."""
    NOT_CONSTANT = "not_constant"
    """A weight, bias or other argument would have to be a constant."""
    CONSTRAINT = "constraint"
    """The backend has the operator, but not with these arguments (stride, groups, dim, ...)."""
    TARGET_CONSTRAINT = "target_constraint"
    """The backend has it with these arguments, but this device has not."""
    NEIGHBOUR = "neighbour"
    """It belongs to another node that stays on the CPU: its quantize or dequantize, getitem, or one fused with it."""
    BOUNDARY = "boundary"
    """It would stand at the edge of a partition and convert number formats only; the CPU does that."""
    NO_OP_PARTITION = "no_op_partition"
    """Its partition would have computed nothing."""
    PARTITIONING = "partitioning"
    """Supported by itself, but left out when partitions were formed, e.g. because one would depend on itself."""
    UNKNOWN = "unknown"
    """The backend did not say."""


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why one node is not delegated."""

    code: ReasonCode
    message: str
    """In the backend's own words where it has some, e.g. `groups=4, out_channels=6: not divisible`."""
    check: str = ""
    """What said no, e.g. `ConvolutionConverter._is_supported_on_target`; empty where it was no check of the backend."""
    values: Mapping[str, object] = field(default_factory=dict)
    """The values that decided, by argument or property: numbers, texts, lists of them."""
    node: str = ""
    """The other node that decided, where one did (`neighbour`, `excluded`)."""

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


@dataclass(frozen=True, kw_only=True)
class PlannedTensor:
    """A tensor that a node takes or gives."""

    source: str
    """The node that computes it, or the placeholder of an input, parameter, buffer or constant."""
    shape: tuple[int, ...]
    """Sizes; the largest one where a size varies."""
    dtype: str
    """E.g. `float32`."""
    size_bytes: int
    is_constant: bool = False
    """Whether it is a parameter, constant or buffer of the program; a buffer that the program writes is none."""
    is_dynamic: bool = False
    """Whether a size varies from call to call."""

    @property
    def num_elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class PlannedNode:
    """One node of the edge program and what becomes of it."""

    name: str
    """Name in the edge program's graph."""
    operator: str
    """E.g. `aten.convolution.default`."""
    compute: bool
    """False for what only moves or converts between number formats: getitem, quantize and dequantize."""
    partition: str | None
    """Delegation tag, None where the node stays on the CPU."""
    module: str
    """Path of the module that it comes from, e.g. `features.0.conv`; empty where unknown."""
    source: str = ""
    """File and line of the model's code that it comes from, e.g. `resnet8.py:41`; empty where unknown."""
    inputs: tuple[PlannedTensor, ...] = ()
    outputs: tuple[PlannedTensor, ...] = ()
    macs: int = 0
    """Multiply-accumulate operations per inference; 0 for what multiplies no matrices."""
    is_quantized: bool = False
    """Whether it computes on quantized values: all that is computed for it is dequantized from integers, and its result
    is quantized again, at once or after an activation function, which then is quantized too; or it has a weight that
    is dequantized."""
    reason: Reason | None = None
    """Why it is not delegated; None exactly where it is."""
    excluded_by: str | None = None
    """Option and pattern of the configuration that keep it off the delegate, where that is the reason."""


def _listed(names: Sequence[str], most: int = 10) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


@dataclass(frozen=True, kw_only=True)
class DelegationPlan:
    """For every node of the edge program whether it is delegated, and in which partition."""

    backend: str
    nodes: tuple[PlannedNode, ...]
    outputs: tuple[str, ...] = ()
    """Nodes whose results the program gives, or writes into its buffers."""
    converter: Converter | None = None
    """The converter release whose target the plan is for; None where that was not asked."""

    @property
    def partitions(self) -> tuple[str, ...]:
        """Delegation tags in order of their first node."""
        return tuple(dict.fromkeys(node.partition for node in self.nodes if node.partition is not None))

    @property
    def compute_nodes(self) -> int:
        """Number of nodes that compute."""
        return sum(node.compute for node in self.nodes)

    @property
    def delegated_compute_nodes(self) -> int:
        """Number of nodes that compute and are delegated."""
        return sum(node.compute and node.partition is not None for node in self.nodes)

    @property
    def exclusions(self) -> tuple[str, ...]:
        """What the configuration keeps off the delegate: a line for each pattern, with the nodes that it named."""
        named: dict[str, list[str]] = {}
        for node in self.nodes:
            if node.excluded_by is not None:
                named.setdefault(node.excluded_by, []).append(node.name)
        return tuple(f"{pattern} keeps {len(names)} off: {_listed(names)}" for pattern, names in named.items())

    @property
    def summary(self) -> str:
        """One line for the terminal."""
        partitions = "1 partition" if len(self.partitions) == 1 else f"{len(self.partitions)} partitions"
        return f"{self.delegated_compute_nodes} of {self.compute_nodes} compute nodes delegated in {partitions}"


class NothingDelegatedError(LowerdeckError):
    """A backend takes no node of a program at all; the message lists the reasons, and `plan` has them by node."""

    def __init__(self, message: str, plan: DelegationPlan) -> None:
        super().__init__(message)
        self.plan = plan
