"""Operators of nodes: their names in plans, options and messages, and their kinds."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram


DELEGATION_TAG = "delegation_tag"
"""Key of `node.meta` under which ExecuTorch's partitioners store a node's partition."""
KERNEL_LIBRARY = "lowerdeck_kernel_library"
"""Key of `node.meta` under which a backend stores which kernel library of the CPU computes an undelegated node; without
it, portable kernels do."""
MARK_OF_LIBRARY = "lowerdeck_mark_of_library"
"""Key of `node.meta["custom"]` with the key of a mark that a kernel library put there, and a delegate must not see."""
STATIC_QUANTIZE, STATIC_DEQUANTIZE = "quantized_decomposed.quantize_per_", "quantized_decomposed.dequantize_per_"
"""Name prefixes of operators that quantize and dequantize with scales known in advance."""
QUANTIZE, DEQUANTIZE = (STATIC_QUANTIZE, "torchao.quantize_"), (STATIC_DEQUANTIZE, "torchao.dequantize_")
"""Name prefixes of all operators that quantize and dequantize."""
_NUMBER_FORMATS = ("quantized_decomposed.", "torchao.")
"""Namespaces of operators that quantize, dequantize or choose a scale at run time."""


def aten_operator(target: Any) -> Any:
    """The ATen operator of a node's target, which those of edge programs wrap; other targets as they are."""
    wrapped = getattr(target, "_op", None)
    return wrapped if hasattr(wrapped, "_schema") else target


def operator_name(node: torch.fx.Node) -> str:
    """E.g. `aten.convolution.default`, for ATen and edge programs alike."""
    return _target_name(node.target)


@lru_cache(maxsize=4096)  # PyTorch composes the name at every call, and graphs are asked about each node many times
def _target_name(target: Any) -> str:
    operator = aten_operator(target)
    return str(operator) if hasattr(operator, "_schema") else str(getattr(operator, "__name__", operator))


def is_compute(node: torch.fx.Node) -> bool:
    """Whether `node` computes a tensor.

    getitem, quantize and dequantize only unpack values or change their number format; with dynamic shapes, some nodes
    only read a size.
    """
    import torch

    name, value = operator_name(node), node.meta.get("val")
    moves = name == "getitem" or name.startswith(_NUMBER_FORMATS) or isinstance(value, (torch.SymInt, int))
    return node.op == "call_function" and not moves


def original_operators(node: torch.fx.Node) -> frozenset[str]:
    """The operators of `node` before decompositions and passes, e.g. `aten.linear.default` for an addmm."""
    found: set[str] = set()
    sources = list(node.meta.get("from_node") or ())
    while sources:
        source = sources.pop()
        found.add(str(source.target))
        sources += source.from_node
    return frozenset(found)


def is_operator(name: str, pattern: str) -> bool:
    """Whether `pattern` is the operator `name`, with or without its overload.

    Patterns are e.g. `aten::add`, `aten.add` or `aten.add.Tensor`; `aten::add` does not match `aten.addmm.default`.
    """
    wanted = pattern.replace("::", ".")
    return wanted in (name, name.rpartition(".")[0])


def constant_names(program: ExportedProgram) -> frozenset[str]:
    """Names of the placeholders of parameters, buffers and constants."""
    signature = program.graph_signature
    return frozenset(
        (*signature.inputs_to_parameters, *signature.inputs_to_buffers, *signature.inputs_to_lifted_tensor_constants)
    )
