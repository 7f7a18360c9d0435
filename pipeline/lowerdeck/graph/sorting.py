"""Sorting, medians and buckets by what ExecuTorch has kernels for: `topk`, and comparisons that are counted."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from lowerdeck.graph.retracing import called, replace_by

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.export import ExportedProgram
    from torch.fx import Node

_aten = torch.ops.aten
_Tensor = torch.Tensor


def sort_by_topk(program: ExportedProgram) -> None:
    """Rewrite them in an ATen program; `rename_outputs` comes next.

    Which of equal values comes first is another one. So a stable order whose indices are used stays, and so does what
    has a varying size. NaN is the largest of all, also in a median, which would be NaN.
    """
    for node in list(program.graph.nodes):
        if node.op != "call_function" or not _is_static(node):
            continue
        if node.target in _SINGLE:
            replace_by(node, _SINGLE[node.target])
        elif node.target in (_aten.sort.default, _aten.sort.stable) and not _needs_stable_indices(node):
            _sort(node, *node.args, **node.kwargs)
        elif node.target in (_aten.median.dim, _aten.kthvalue.default):
            _choose(node, *node.args, **node.kwargs)
        elif node.target in _COUNTS:
            replace_by(node, _COUNTS[node.target])


def _is_static(node: Node) -> bool:
    values = [source.meta.get("val") for source in node.all_input_nodes]
    return all(isinstance(value, _Tensor) and all(isinstance(size, int) for size in value.shape) for value in values)


def _needs_stable_indices(node: Node) -> bool:
    is_stable = node.target is _aten.sort.stable and node.kwargs.get("stable", False)
    return bool(is_stable) and any(user.args[1] == 1 and user.users for user in node.users)


def _sort(node: Node, x: Node, dim: int = -1, descending: bool = False, **_: Any) -> None:
    options = _size(x.meta["val"], dim), dim, descending
    if x.meta["val"].dtype == torch.bool:
        _sort_booleans(node, x, *options)
    else:
        node.target, node.args, node.kwargs = _aten.topk.default, (x, *options), {}


def _sort_booleans(node: Node, x: Node, *options: Any) -> None:
    """As numbers: the kernel of topk takes no booleans, and the program would end when it is executed."""
    with node.graph.inserting_before(node):
        numbers = called(node, _aten.to.dtype, x, torch.uint8)
        found = called(node, _aten.topk.default, numbers, *options)
        for user in list(node.users):
            result = called(node, operator.getitem, found, user.args[1])
            user.replace_all_uses_with(called(node, _aten.to.dtype, result, user.meta["val"].dtype))
            node.graph.erase_node(user)
    node.graph.erase_node(node)


def _choose(node: Node, x: Node, *args: Any, **kwargs: Any) -> None:
    """Replace the results of `node`, a value and its index, by the last of the k smallest."""
    names = ("dim", "keepdim") if node.target is _aten.median.dim else ("k", "dim", "keepdim")
    given = {"dim": -1, "keepdim": False} | dict(zip(names, args, strict=False)) | kwargs
    size = _size(x.meta["val"], given["dim"])
    k, dim = given.get("k", (size + 1) // 2), given["dim"]
    with node.graph.inserting_before(node):
        smallest = called(node, _aten.topk.default, x, k, dim, False)
        for user in list(node.users):
            found = called(node, operator.getitem, smallest, user.args[1])
            if not x.meta["val"].ndim:
                chosen = found
            elif given["keepdim"]:
                chosen = called(node, _aten.slice.Tensor, found, dim, k - 1, k)
            else:
                chosen = called(node, _aten.select.int, found, dim, k - 1)
            user.replace_all_uses_with(chosen)
            node.graph.erase_node(user)
    node.graph.erase_node(node)


def _argsort(x: _Tensor, dim: int = -1, descending: bool = False) -> _Tensor:
    return torch.topk(_numbers(x), _size(x, dim), dim, descending)[1]


def _msort(x: _Tensor) -> _Tensor:
    return torch.topk(_numbers(x), _size(x, 0), 0, largest=False)[0].to(x.dtype)


def _size(x: _Tensor, dim: int) -> int:
    return x.shape[dim] if x.ndim else 1


def _numbers(x: _Tensor) -> _Tensor:
    return x.to(torch.uint8) if x.dtype == torch.bool else x


def _median(x: _Tensor) -> _Tensor:
    return torch.topk(x.flatten(), (x.numel() + 1) // 2, 0, largest=False)[0][-1]


def _bucketize(x: _Tensor, boundaries: _Tensor, *, out_int32: bool = False, right: bool = False) -> _Tensor:
    is_below = boundaries <= x[..., None] if right else boundaries < x[..., None]
    # In float32, because ExecuTorch's kernel for sums of integers is not the one that PyTorch has.
    return is_below.to(torch.float32).sum(-1).to(torch.int32 if out_int32 else torch.int64)


def _searchsorted(
    boundaries: _Tensor,
    x: _Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: _Tensor | None = None,
) -> _Tensor:
    boundaries = boundaries if sorter is None else boundaries.gather(-1, sorter)
    boundaries = boundaries if boundaries.ndim == 1 else boundaries[..., None, :]
    return _bucketize(x, boundaries, out_int32=out_int32, right=right or side == "right")


_SINGLE: dict[object, Callable[..., _Tensor]] = {
    _aten.argsort.default: _argsort,
    _aten.msort.default: _msort,
    _aten.median.default: _median,
}
_COUNTS: dict[object, Callable[..., _Tensor]] = {
    _aten.bucketize.Tensor: _bucketize,
    _aten.searchsorted.Tensor: _searchsorted,
}
