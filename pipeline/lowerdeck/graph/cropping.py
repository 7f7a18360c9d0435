"""Padding by negative numbers, which crops: ExecuTorch's kernel refuses it when the program runs.

torch.nn.functional.fold with padding crops, too: its decomposition pads what it summed by negative numbers.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

_aten = torch.ops.aten
_PADS = (_aten.pad.default, _aten.constant_pad_nd.default)


def crop_by_slices(program: ExportedProgram) -> None:
    """Write what negative padding removes as slices, and keep the rest of the padding; `rename_outputs` comes next."""
    for node in [node for node in program.graph.nodes if node.target == _aten.col2im.default and any(node.args[4])]:
        _fold_then_crop(node)
    for node in [node for node in program.graph.nodes if node.target in _PADS]:
        source, widths = node.args[0], node.args[1]
        is_constant = node.target is _PADS[1] or len(node.args) < 3 or node.args[2] == "constant"
        if not is_constant or not all(isinstance(width, int) for width in widths) or min(widths, default=0) >= 0:
            continue
        cropped = source
        for number, (before, after) in enumerate(zip(widths[::2], widths[1::2], strict=True), 1):
            size = source.meta["val"].shape[-number]
            if min(before, after) < 0:
                end = size + min(after, 0) if isinstance(size, int) else after if after < 0 else sys.maxsize
                cropped = _sliced(node, cropped, -number, max(-before, 0), end)
        node.replace_input_with(source, cropped)
        node.update_arg(1, [max(width, 0) for width in widths])
        if not any(node.args[1]):
            node.replace_all_uses_with(cropped)
            program.graph.erase_node(node)


def _fold_then_crop(node: Node) -> None:
    """Let fold sum into all of what it pads, and slice that off."""
    arguments: Any = node.args
    source, sizes, window, dilation, padding, stride = arguments
    whole = [size + 2 * width for size, width in zip(sizes, padding, strict=True)]
    folded = source, whole, window, dilation, [0, 0], stride
    with node.graph.inserting_before(node):
        made = node.graph.call_function(_aten.col2im.default, folded)
    made.meta = {**node.meta, "val": _aten.col2im.default(source.meta["val"], *folded[1:])}
    for dimension, size, width in zip((-2, -1), sizes, padding, strict=True):
        made = _sliced(node, made, dimension, width, width + size)
    node.replace_all_uses_with(made)
    node.graph.erase_node(node)


def _sliced(pad: Node, source: Node, dimension: int, start: int, end: Any) -> Node:
    with pad.graph.inserting_before(pad):
        made = pad.graph.call_function(_aten.slice.Tensor, (source, dimension, start, end))
    made.meta = {**pad.meta, "val": _aten.slice.Tensor(source.meta["val"], dimension, start, end)}
    return made
