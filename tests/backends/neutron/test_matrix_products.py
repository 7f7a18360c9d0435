"""lowerdeck.backends.neutron.matrix_products: the same values, by the operator that NXP has."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lowerdeck.backends.neutron.matrix_products import use_bmm


class Product(nn.Module):
    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch.relu(left @ right)


@pytest.mark.parametrize(
    ("left", "right", "operators"),
    [
        ((2, 4, 5), (2, 5, 3), ["bmm", "relu"]),
        ((1, 2, 4, 5), (1, 2, 5, 3), ["reshape", "reshape", "bmm", "reshape", "relu"]),
        ((4, 5), (5, 3), ["matmul", "relu"]),
        ((2, 4, 5), (1, 5, 3), ["matmul", "relu"]),
        ((2, 4, 5), (5, 3), ["matmul", "relu"]),
    ],
)
def test_products_of_equally_many_matrices_become_bmm(
    left: tuple[int, ...], right: tuple[int, ...], operators: list[str]
) -> None:
    operands = torch.randn(left), torch.randn(right)
    model = torch.export.export(Product(), operands).module(check_guards=False)
    expected = model(*operands)
    use_bmm(model.graph)
    model.graph.lint()
    model.recompile()
    called = [node for node in model.graph.nodes if node.op == "call_function"]
    assert [node.target.__name__.partition(".")[0] for node in called] == operators
    assert all(node.meta["val"].shape == tuple(expected.shape) for node in called[-2:])
    assert all("nn_module_stack" in node.meta for node in called)
    torch.testing.assert_close(model(*operands), expected)
