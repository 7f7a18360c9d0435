"""lowerdeck.quantization.matrix_products: the same values, by operators that backends have."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.quantization.matrix_products import use_bmm, use_linear
from tests.marks import quick_first


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


class LogMel(nn.Module):
    """The features of a keyword spotter: float32 [1 x 10 x 8] -> [1 x 6 x 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.mel = nn.Buffer(torch.rand(6, 10))

    def forward(self, power: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.log(self.mel @ power.abs() + 1e-2)
        return result


@pytest.mark.parametrize("target", quick_first(["ethos_u55_128", "neutron_imxrt700", "xnnpack_cpu"]))
def test_a_constant_may_be_multiplied_by_several_matrices(target: str) -> None:
    """Arm's passes gave the constant sizes that are symbols, which its quantizer refuses."""
    torch.manual_seed(0)
    verdict, detail = lowered(LogMel().eval(), [(torch.randn(1, 10, 8),) for _ in range(8)], create(target))
    assert verdict == "right", detail


class Basis(nn.Module):
    """What N-BEATS does: predictions are products of a layer's result and constant matrices."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(12, 8)
        self.basis: torch.Tensor
        self.register_buffer("basis", torch.randn(8, 12))
        self.weight = nn.Parameter(torch.randn(12, 5))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        coefficients = torch.relu(self.layer(x))
        return x - coefficients @ self.basis, torch.mm(x, self.weight) + self.basis.sum()


def test_products_with_constants_become_linear_layers() -> None:
    values = torch.randn(1, 12)
    model = torch.export.export(Basis().eval(), (values,)).module(check_guards=False)
    assert isinstance(model, torch.fx.GraphModule)
    expected = model(values)
    use_linear(model)
    model.graph.lint()
    called = [node.target.__name__.partition(".")[0] for node in model.graph.nodes if node.op == "call_function"]
    assert called == ["linear", "relu", "linear", "sub", "linear", "sum", "add"]
    torch.testing.assert_close(model(values), expected)


@pytest.mark.parametrize(
    "target", quick_first(["cortex_m55", "neutron_imxrt700", "ethos_u55_128", "ethos_u85_256", "xnnpack_cpu"])
)
def test_products_with_constants_run_on_every_target(target: str) -> None:
    generator = torch.Generator().manual_seed(1)
    samples = [(torch.randn(1, 12, generator=generator),) for _ in range(8)]
    verdict, detail = lowered(Basis().eval(), samples, create(target))
    assert verdict == "right", detail


def test_integers_are_multiplied_as_they_are() -> None:
    """Their constant became a parameter, which integers cannot be."""

    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factors: torch.Tensor
            self.register_buffer("factors", torch.arange(15).view(5, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.factors

    values = torch.arange(20).view(4, 5)
    model = torch.export.export(Counted(), (values,)).module(check_guards=False)
    assert isinstance(model, torch.fx.GraphModule)
    use_linear(model)
    assert torch.equal(model(values), Counted()(values))


@pytest.mark.parametrize(("shapes"), [((4, 5), (5, 3)), ((2, 4, 5), (5, 3)), ((2, 4, 5), (2, 5, 3))])
def test_cortex_m_takes_a_constant_on_either_side(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = (nn.Parameter(torch.randn(shape)) for shape in shapes)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.relu(x) @ self.right, self.left @ torch.relu(y)

    torch.manual_seed(0)
    samples = [(torch.randn(shapes[0]), torch.randn(shapes[1])) for _ in range(8)]
    verdict, detail = lowered(Constant().eval(), samples, create("cortex_m55"))
    assert verdict == "right", detail
