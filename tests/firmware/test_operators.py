"""lowerdeck.firmware.operators: the list of kernels is the same in every call."""

from __future__ import annotations

import torch
import yaml
from torch import nn

from lowerdeck.firmware.operators import selected_operators


class Ranks(nn.Module):
    """One operator on tensors of four ranks and two types: eight signatures of its kernel."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        shapes = [(16,), (4, 4), (2, 2, 4), (2, 2, 2, 2)]
        return tuple(torch.neg(x.to(dtype).reshape(shape)) for shape in shapes for dtype in (x.dtype, torch.int32))


def test_kernels_of_one_operator_come_in_order() -> None:
    from executorch.exir import to_edge

    program = to_edge(torch.export.export(Ranks(), (torch.zeros(16),))).to_executorch().buffer
    listed = selected_operators(program)
    kernels = yaml.safe_load(listed)["et_kernel_metadata"]["aten::neg.out"]
    assert len(kernels) == 8
    assert kernels == sorted(kernels)
    assert {selected_operators(program) for _ in range(10)} == {listed}
