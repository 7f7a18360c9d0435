"""Copies tensors where the layout of their memory is not the one that a kernel takes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from executorch.backends.transforms.utils import get_param_tensor, is_param_node
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.tensor import dim_order_from_stride
from torch.fx.passes.infra.pass_base import PassResult
from torch.utils._pytree import tree_map_only

from lowerdeck.graph.nodes import DEQUANTIZE, operator_name
from lowerdeck.graph.state import state_nodes
from lowerdeck.runtime import cmsis_nn
from lowerdeck.runtime.tensors import strides_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

_edge = exir_ops.edge.aten
_OF_ONE_LAYOUT = (
    *(_edge.add.Tensor, _edge.sub.Tensor, _edge.mul.Tensor, _edge.div.Tensor),
    *(_edge.maximum.default, _edge.minimum.default),
)
"""Operators whose kernels read all operands in the order of their memory, or refuse those of different layouts."""
_IN_ITS_LAYOUT = (
    *(_edge.convolution.default, _edge.max_pool2d_with_indices.default),
    *(_edge.upsample_nearest2d.vec, _edge.upsample_bilinear2d.vec),
)
"""Operators whose portable kernels compute in channels-last memory, if their result has the layout of their operand.

Average pooling does, too, but ExecuTorch hands it a contiguous copy (LegalizePortableDimOrderPass).
"""
_BY_NUMBER = {
    _edge.add.Tensor: _edge.add.Scalar,
    _edge.sub.Tensor: _edge.sub.Scalar,
    _edge.mul.Tensor: _edge.mul.Scalar,
    _edge.div.Tensor: _edge.div.Scalar,
}
_CLONE = exir_ops.edge.dim_order_ops._clone_dim_order.default
_CAST = exir_ops.edge.dim_order_ops._to_dim_order_copy.default
_CHANNELS_LAST = (0, 2, 3, 1)
_DIMENSIONS = len(_CHANNELS_LAST)
_COMMUTATIVE = (_edge.add.Tensor, _edge.mul.Tensor)


def settle_layouts(module: torch.fx.GraphModule) -> PassResult:
    """Insert copies into another layout.

    - In front of every `view_copy` of a tensor that is not contiguous. ExecuTorch lets the result share its operand's
      memory (ReplaceViewCopyWithViewPass), which puts the elements in another order where that is channels-last.
      PyTorch's `reshape` copies where strides cannot express the result; unflattened channels, `stack` and a channel
      shuffle are views in PyTorch, and arrive here without a copy.
    - Of an operand that has another layout than the result of an operation of two tensors.
    """
    modified = False
    for node in list(module.graph.nodes):
        if node.target == _edge.view_copy.default and not node.args[0].meta["val"].is_contiguous():
            _copy(node, node.args[0], torch.contiguous_format)
            modified = True
        if node.target in _OF_ONE_LAYOUT and node.meta["val"].ndim == 4:
            layout = _layout(node.meta["val"])
            for operand in node.all_input_nodes:
                value = operand.meta["val"]
                if value.ndim == 4 and layout is not None and not value.is_contiguous(memory_format=layout):
                    _copy(node, operand, layout)
                    modified = True
    if modified:
        module.recompile()
    return PassResult(module, modified)


def _layout(value: torch.Tensor) -> torch.memory_format | None:
    """The only one that the tensor is contiguous in; None where there are several, or none."""
    formats = (torch.contiguous_format, torch.channels_last)
    found = [each for each in formats if value.is_contiguous(memory_format=each)]
    return found[0] if len(found) == 1 else None


def _copy(node: torch.fx.Node, operand: torch.fx.Node, layout: torch.memory_format) -> None:
    """Let `node` take a copy of `operand`; of the integers, where it takes what they are dequantized to."""
    graph, is_dequantized = node.graph, operator_name(operand).startswith(DEQUANTIZE)
    is_dequantized &= node.target in _OF_ONE_LAYOUT
    source = operand.args[0] if is_dequantized else operand
    assert isinstance(source, torch.fx.Node)
    value = source.meta["val"].contiguous(memory_format=layout)
    with graph.inserting_before(node):
        copied = graph.call_function(
            _CLONE,
            (source,),
            {"dim_order": list(value.dim_order())},
        )
        copied.meta = {**(source if is_dequantized else node).meta, "val": value}
        if is_dequantized:
            taken = graph.node_copy(operand, lambda each: copied if each is source else each)
            taken.meta = {**operand.meta, "val": operand.meta["val"].contiguous(memory_format=layout)}
        else:
            taken = copied
    node.replace_input_with(operand, taken)


def settle_kernels(program: ExportedProgram) -> Callable[[torch.fx.GraphModule], PassResult]:
    """A pass that gives all kernels of `program` the layouts that they know, when CMSIS-NN's are chosen.

    CMSIS-NN's kernels do not look at layouts, and the passes that choose them give some tensors others. Most portable
    kernels refuse channels-last memory beside another layout, and a few compute something else there. Operators
    that are not known to take it get contiguous copies, and what reads their results finds these in the layout that it
    knows. A constant of one element becomes a number, which has no layout.
    """
    state = set(state_nodes(program))
    stored = [node for node in program.graph.nodes if is_param_node(program, node) and node not in state]
    nodes = [node for node in stored if node.meta.get("val") is not None]
    numbers = {node.name: get_param_tensor(program, node).item() for node in nodes if node.meta["val"].numel() == 1}
    filled = [node for node in program.graph.nodes if node.target == _edge.full.default]
    numbers |= {node.name: node.args[1] for node in filled if node.meta["val"].numel() == 1}

    def settle(module: torch.fx.GraphModule) -> PassResult:
        modified, copies = False, _Copies()
        for node in [node for node in module.graph.nodes if node.op == "call_function"]:
            if node.target in (_CLONE, _CAST):
                modified |= _settle_clone(node)
            elif not operator_name(node).startswith("aten."):
                modified |= _settle_cmsis_nn(node, copies)
            else:
                modified |= _settle_portable(node, numbers, copies)
        if modified:
            module.graph.eliminate_dead_code()
            module.recompile()
        return PassResult(module, modified)

    return settle


class _Copies:
    """Tensors that are in memory in several layouts."""

    def __init__(self) -> None:
        self._made: dict[tuple[Node, tuple[int, ...]], Node] = {}

    def let_take(self, node: Node, operand: Node, wanted: torch.Tensor) -> None:
        """Let `node` read `operand` in the layout of `wanted`."""
        key = operand, _order(wanted)
        if key not in self._made:
            with node.graph.inserting_before(node):
                self._made[key] = _cloned(operand, wanted)
        node.replace_input_with(operand, self._made[key])

    def remember(self, tensor: Node, other: Node) -> None:
        """Remember that `other` holds what `tensor` does, in its own layout."""
        self._made[tensor, _order(other.meta["val"])] = other


def _settle_clone(node: Node) -> bool:
    """Make a copy or cast contiguous whose stated order the program does not have; returns whether it was such a one.

    The two differ for one channel, or pixel, whose strides leave the order open, and the kernel checks them. In memory
    they are the same.
    """
    stated, value = node.kwargs.get("dim_order"), node.meta["val"]
    if stated is None or tuple(stated) == _order(value):  # type: ignore[arg-type]
        return False
    node.kwargs = {**node.kwargs, "dim_order": list(range(value.ndim))}
    node.meta["val"] = _contiguous(value)
    return True


def _settle_portable(node: Node, numbers: Mapping[str, float], copies: _Copies) -> bool:
    """Give a portable kernel numbers for constants and contiguous copies, where it needs them; returns whether."""
    modified = node.target in _BY_NUMBER and _has_order(node.meta["val"]) and _take_number(node, numbers)
    if _takes_its_layouts(node):
        return modified
    _compute_contiguous(node, copies)
    return True


def _settle_cmsis_nn(node: Node, copies: _Copies) -> bool:
    """Give an operator of CMSIS-NN copies of operands in other layouts; returns whether it gets some."""
    kernel, value = operator_name(node).removeprefix("cortex_m.").removesuffix(".default"), node.meta["val"]
    if kernel in cmsis_nn.OF_CHANNELS_LAST:
        wanted: dict[Node, torch.Tensor] = {each: _channels_last(each) for each in node.all_input_nodes[:1]}
    elif kernel in cmsis_nn.OF_CONTIGUOUS:
        wanted = {each: _contiguous(each.meta["val"]) for each in node.all_input_nodes[:1]}
    elif kernel in cmsis_nn.ELEMENTWISE and value.ndim == _DIMENSIONS:
        operands = [each for each in node.all_input_nodes if each.meta["val"].ndim == _DIMENSIONS]
        is_contiguous = value.is_contiguous()
        wanted = {each: _contiguous(each.meta["val"]) if is_contiguous else _channels_last(each) for each in operands}
    else:
        return False
    changed = {each: to for each, to in wanted.items() if _in_memory(each.meta["val"]) != _in_memory(to)}
    for operand, to in changed.items():
        copies.let_take(node, operand, to)
    if changed and kernel == "softmax":  # its result has the layout of its operand
        _restore(node, value, copies)
    return bool(changed)


def _takes_its_layouts(node: Node) -> bool:
    """Whether the portable kernel takes the tensors of `node` in the layouts that they have."""
    read, written = _tensors(node.all_input_nodes), _tensors(_results(node))
    if node.target == _edge.view_copy.default or not any(map(_has_order, read + written)):
        return True  # a view has no kernel
    if node.target in _IN_ITS_LAYOUT:
        read = read[:1]
    elif torch.Tag.pointwise not in node.target._op.tags:  # type: ignore[union-attr]
        return False
    # The kernel of a product of tensors of different sizes reads them as if they were contiguous.
    is_alike = node.target in _IN_ITS_LAYOUT or len({value.shape for value in read + written}) == 1
    return is_alike and {_order(value) for value in read + written} == {_CHANNELS_LAST}


def _take_number(node: Node, numbers: Mapping[str, float]) -> bool:
    """Let an operation of a tensor and a constant of one element take a number; returns whether it does."""
    first, second = node.all_input_nodes if len(node.all_input_nodes) == len(node.args) else (node, node)
    if first.name in numbers and node.target in _COMMUTATIVE:
        first, second = second, first
    if second.name not in numbers or node.kwargs or first.meta["val"].shape != node.meta["val"].shape:
        return False
    node.target, node.args = _BY_NUMBER[node.target], (first, numbers[second.name])
    return True


def _compute_contiguous(node: Node, copies: _Copies) -> None:
    """Let `node` take contiguous copies and return what others find in the layout that it had."""
    for operand in [each for each in node.all_input_nodes if any(map(_has_order, _tensors([each])))]:
        copies.let_take(node, operand, _contiguous(operand.meta["val"]))
    results = {result: result.meta["val"] for result in _results(node)}
    node.meta["val"] = tree_map_only(torch.Tensor, _contiguous, node.meta["val"])
    for result, known in results.items():
        _restore(result, known, copies)


def _restore(result: Node, known: Any, copies: _Copies) -> None:
    """Let readers of `result`, which becomes contiguous, find the layout of `known`, its value before."""
    result.meta["val"] = tree_map_only(torch.Tensor, _contiguous, known)
    if isinstance(known, torch.Tensor) and known.ndim == _DIMENSIONS and not known.is_contiguous():
        readers = list(result.users)
        with result.graph.inserting_after(result):
            as_known = _cloned(result, _channels_last(result))
        for reader in readers:
            reader.replace_input_with(result, as_known)
        copies.remember(as_known, result)


def _cloned(source: Node, value: torch.Tensor) -> Node:
    """A copy of `source` in the layout of `value`."""
    made: Node = source.graph.call_function(_CLONE, (source,), {"dim_order": list(_order(value))})
    made.meta = {**source.meta, "val": value}
    return made


def _contiguous(value: torch.Tensor) -> torch.Tensor:
    """`value` with strides that leave no doubt, as a dimension of size 1 else does."""
    shape = tuple(value.shape)
    return value.new_empty_strided(shape, strides_of(shape, range(len(shape))))


def _channels_last(node: Node) -> torch.Tensor:
    value: torch.Tensor = node.meta["val"]
    return value.contiguous(memory_format=torch.channels_last) if value.ndim == _DIMENSIONS else value


def _in_memory(value: torch.Tensor) -> list[int]:
    """The order of its dimensions in memory, without those of one element, which lie anywhere."""
    return [dimension for dimension in _order(value) if value.shape[dimension] != 1]


def _results(node: Node) -> list[Node]:
    """`node`, or the nodes that take its several results."""
    return [user for user in node.users if user.target is operator.getitem] or [node]


def _tensors(nodes: Iterable[Node]) -> list[torch.Tensor]:
    return [node.meta["val"] for node in nodes if isinstance(node.meta["val"], torch.Tensor)]


def _order(value: torch.Tensor) -> tuple[int, ...]:
    """The dimensions of `value` from outermost to innermost in memory, as ExecuTorch states them in the program."""
    return tuple(dim_order_from_stride(value.stride()))


def _has_order(value: torch.Tensor) -> bool:
    """Whether the program states another order than that of the dimensions."""
    return _order(value) != tuple(range(value.ndim))
