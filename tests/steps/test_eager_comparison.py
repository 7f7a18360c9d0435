"""lowerdeck.steps.eager_comparison: a program that answers otherwise than its model is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.samples import Sample
from lowerdeck.steps.eager_comparison import check_answers
from lowerdeck.steps.export import export

SHAPE = [1, 3, 8, 8]
OTHERWISE: dict[str, Callable[[torch.Tensor], Any]] = {
    "compiling": lambda y: y.clamp(min=0) if torch.compiler.is_compiling() else y,
    "exporting": lambda y: (y.mean((2, 3)), y * 2 if torch.compiler.is_exporting() else y),
    "no numbers": lambda y: (y / (y * 0) * 0 if torch.compiler.is_compiling() else y).mean(1),
    "type": lambda y: y.sigmoid() if type(y) is torch.Tensor else y.tanh(),
}
ALIKE: dict[str, Callable[[torch.Tensor], Any]] = {
    "masked": lambda y: (y.flatten(1) @ y.flatten(1).mT).masked_fill(torch.ones(1, 1, dtype=torch.bool), -torch.inf),
    "classes": lambda y: y.mean((2, 3)).argmax(1),
    "order": lambda y: y.relu().flatten(1).sort(descending=True),
    "places of equal numbers": lambda y: y.relu().flatten(1).topk(100)[1],
    "mapping": lambda y: {"b": y.mean(), "a": (y.std(), y > 0)},
    "zeros": lambda y: y * 0,
    "half": lambda y: torch.softmax(y.half(), 1),
}


class Net(nn.Module):
    """A convolution, what is made of its result, and a buffer that counts calls."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution, self.function = nn.Conv2d(3, 4, 3), function
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> Any:
        self.get_buffer("calls").add_(1)
        return self.function(self.convolution(x))


def compare(model: nn.Module, **options: Any) -> None:
    samples: Any = [Sample(inputs=(torch.randn(SHAPE),), label=None, digest="0")]
    check_answers(model, export(model, [SHAPE], **options), samples)


@pytest.mark.parametrize("name", OTHERWISE)
def test_a_model_that_asks_whether_it_is_exported_is_refused(name: str) -> None:
    """It was built and evaluated with the best of metrics, and was another network than the user's."""
    with pytest.raises(LowerdeckError, match=r"Net answers otherwise while it is exported: .*output.* % off") as caught:
        compare(Net(OTHERWISE[name]).eval())
    assert "torch.compiler.is_compiling()" in str(caught.value)
    assert "model: exported" in str(caught.value)


@pytest.mark.parametrize("name", ALIKE)
@pytest.mark.parametrize("memory_format", [None, "channels_last"])
def test_what_rounding_and_equal_numbers_explain_is_no_difference(name: str, memory_format: Any) -> None:
    model = Net(ALIKE[name]).eval()
    compare(model, memory_format=memory_format)
    assert float(model.get_buffer("calls")) == 0


def test_another_dtype_is_said_and_its_numbers_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    compare(Net(lambda y: y.double() if torch.compiler.is_compiling() else y).eval())
    assert (
        "returns torch.float32 [1, 4, 6, 6] and, while it is exported, torch.float64 [1, 4" in capsys.readouterr().out
    )
    with pytest.raises(LowerdeckError, match="% off"):
        compare(Net(lambda y: y.double() * 2 if torch.compiler.is_compiling() else y).eval())


def test_other_outputs_and_a_model_that_runs_only_while_it_is_exported_are_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(y: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            raise RuntimeError("the compiled kernel is missing")
        return y

    compare(Net(lambda y: y if torch.compiler.is_compiling() else y.mean(1)).eval())
    compare(Net(fails).eval())
    out = capsys.readouterr().out
    assert "the model returns torch.float32 [1, 6, 6] and, while it is exported, torch.float32 [1, 4, 6, 6]" in out
    assert "was not compared with its program: it raised RuntimeError: the compiled kernel is missing" in out
