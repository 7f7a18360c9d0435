"""Delegation plans made by hand."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from lowerdeck.contracts.plan import DelegationPlan, PlannedNode, PlannedTensor, Reason, ReasonCode

QUANTIZE = "quantized_decomposed.quantize_per_tensor.default"
DEQUANTIZE = "quantized_decomposed.dequantize_per_tensor.default"
BYTES = {"float32": 4, "int8": 1, "int64": 8}


class NodeFields(TypedDict, total=False):
    """Fields of `PlannedNode` that tests set."""

    compute: bool
    partition: str | None
    module: str
    source: str
    macs: int
    is_quantized: bool
    reason: Reason | None


def tensor(source: str, *shape: int, dtype: str = "float32", is_constant: bool = False) -> PlannedTensor:
    size_bytes = BYTES[dtype]
    for size in shape:
        size_bytes *= size
    return PlannedTensor(source=source, shape=shape, dtype=dtype, size_bytes=size_bytes, is_constant=is_constant)


def node(
    name: str,
    operator: str,
    takes: Iterable[PlannedTensor] = (),
    gives: Iterable[PlannedTensor] = (),
    **fields: Unpack[NodeFields],
) -> PlannedNode:
    """A node that takes and gives tensors; it is delegated where `partition` is given, else `reason`."""
    known: NodeFields = {
        "compute": not operator.startswith(("quantized_decomposed", "getitem")),
        "partition": None,
        "module": "",
    }
    return PlannedNode(name=name, operator=operator, inputs=tuple(takes), outputs=tuple(gives), **known | fields)


def make_reason(
    code: str, message: str = "", check: str = "", values: Mapping[str, object] | None = None, node: str = ""
) -> Reason:
    return Reason(code=ReasonCode(code), message=message, check=check, values=values or {}, node=node)


def plan(*nodes: PlannedNode, backend: str = "neutron", outputs: Sequence[str] = ()) -> DelegationPlan:
    return DelegationPlan(backend=backend, nodes=tuple(nodes), outputs=tuple(outputs))


def network(**changed: NodeFields | None) -> DelegationPlan:
    """Quantize, dequantize, convolution (CPU), convolution, two hard swishes (CPU), linear layer, dequantize.

    Args:
        changed: Fields of nodes in place of their own, by the node's name; None leaves the node out.
    """
    shape = (1, 8, 16, 16)
    integers, no_hardswish = tensor("q_in", *shape, dtype="int8"), "no converter for aten.hardswish.default"
    refused = make_reason(
        "target_constraint",
        "out_channels % num_macs != 0 with out_channels=6, num_macs=8",
        check="ConvolutionConverter._is_supported_on_target",
        values={"out_channels": 6, "num_macs": 8},
    )
    nodes = [
        node("q_in", QUANTIZE, [tensor("x", *shape)], [integers], reason=make_reason("boundary", "quantizes an input")),
        node(
            "dq_in",
            DEQUANTIZE,
            [integers],
            [tensor("dq_in", *shape)],
            reason=make_reason("neighbour", "dequantizes for conv_0", node="conv_0"),
        ),
        node(
            "conv_0",
            "aten.convolution.default",
            [tensor("dq_in", *shape), tensor("w_0", 6, 8, 3, 3, is_constant=True)],
            [tensor("conv_0", 1, 6, 16, 16)],
            module="stem.conv",
            source="net.py:7",
            macs=110592,
            is_quantized=True,
            reason=refused,
        ),
        node(
            "conv_1",
            "aten.convolution.default",
            [tensor("conv_0", 1, 6, 16, 16), tensor("w_1", 8, 6, 1, 1, is_constant=True)],
            [tensor("conv_1", *shape)],
            partition="tag0",
            module="body.0",
            source="net.py:8",
            macs=12288,
            is_quantized=True,
        ),
        node(
            "hardswish",
            "aten.hardswish.default",
            [tensor("conv_1", *shape)],
            [tensor("hardswish", *shape)],
            module="body.1",
            reason=make_reason("no_converter", no_hardswish),
        ),
        node(
            "hardswish_1",
            "aten.hardswish.default",
            [tensor("hardswish", *shape)],
            [tensor("hardswish_1", *shape)],
            module="body.2",
            reason=make_reason("no_converter", no_hardswish),
        ),
        node(
            "linear",
            "aten.linear.default",
            [tensor("hardswish_1", *shape), tensor("w_2", 4, 2048, is_constant=True)],
            [tensor("linear", 1, 4, dtype="int8")],
            partition="tag1",
            module="head",
            macs=8192,
            is_quantized=True,
        ),
        node(
            "dq_out",
            DEQUANTIZE,
            [tensor("linear", 1, 4, dtype="int8")],
            [tensor("dq_out", 1, 4)],
            reason=make_reason("boundary", "dequantizes an output"),
        ),
    ]
    kept = (_replaced(each, fields) for each in nodes if (fields := changed.get(each.name, NodeFields())) is not None)
    return plan(*kept, outputs=["dq_out"])


def _replaced(planned: PlannedNode, fields: NodeFields) -> PlannedNode:
    """`planned` with other fields; who computes it follows from its partition, where that changes."""
    reset: dict[str, Any] = {"processor": ""} if "partition" in fields else {}
    return dataclasses.replace(planned, **reset, **fields)
