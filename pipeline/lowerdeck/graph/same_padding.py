"""Convolutions with padding "same" whose kernels are even, as a padding and a convolution.

They pad one element more behind than in front, so that PyTorch computes them as these two. Quantizers see one call, and
what backends find in its place is not quantized.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lowerdeck.graph.retracing import arguments_of, called

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_aten = torch.ops.aten
_PADDED: dict[Any, Any] = {
    _aten.conv1d.padding: _aten.conv1d.default,
    _aten.conv2d.padding: _aten.conv2d.default,
    _aten.conv3d.padding: _aten.conv3d.default,
}
"""Convolutions whose padding has a name, and those with numbers."""


def pad_even_kernels(program: ExportedProgram) -> None:
    """Replace these convolutions in an ATen program; `rename_outputs` comes next."""
    for node in program.graph.nodes:
        given = arguments_of(node) if node.target in _PADDED else dict[str, Any]()
        if given.get("padding") != "same":
            continue
        image, weight, bias, stride, _, dilation, groups = given.values()
        sizes = weight.meta["val"].shape[2:]
        spans = [step * (size - 1) for size, step in zip(sizes, dilation * (len(sizes) // len(dilation)), strict=True)]
        if any(span % 2 for span in spans):
            behind = [number for span in reversed(spans) for number in (0, span % 2)]
            with program.graph.inserting_before(node):
                image = called(node, _aten.pad.default, image, behind)
            node.args = image, weight, bias, stride, [span // 2 for span in spans], dilation, groups
            node.kwargs, node.target = {}, _PADDED[node.target]
