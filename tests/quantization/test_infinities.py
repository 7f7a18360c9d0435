"""lowerdeck.quantization.infinities: what no integer stands for is refused, with its place in the model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from benchmarks.in_turns import create
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.contracts.samples import Sample
from lowerdeck.quantization.fallback import quantizer_of
from lowerdeck.quantization.training import Recipe, Training
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.export import export
from tests.marks import quick_first

SMALLEST = torch.finfo(torch.float32).min
LAST = torch.arange(8) > 5


class Between(nn.Module):
    """A function between two layers: float32 [1 x 8] -> [1 x 4]."""

    def __init__(self, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.function = nn.Linear(8, 8), nn.Linear(8, 4), function
        self.limits = nn.Buffer(torch.where(LAST, torch.inf, 0.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.function(self.first(x), self.limits))
        return found


class Kept:
    """No checkpoint."""

    def load(self) -> None:
        """See Checkpoints."""

    def save(self, epochs: int, tensors: object) -> None:
        """See Checkpoints."""


class Labeled(list[Sample]):
    """A split."""

    def digest(self, index: int) -> str:
        """See Split."""
        return str(index)


def refusal(network: nn.Module, target: str, *, is_qat: bool = False) -> str:
    scheme, drawn = QuantizationScheme(name="int8", is_qat=is_qat), [(torch.randn(1, 8),) for _ in range(4)]
    quantizer = quantizer_of(create(target), scheme)
    assert quantizer is not None
    split = Labeled(Sample(inputs=each, label=0, digest=str(index)) for index, each in enumerate(drawn))
    recipe = Recipe(epochs=1, learning_rate=1e-6, batch_size=2, seed=0)
    training = Training(recipe=recipe, split=split, checkpoints=Kept()) if is_qat else None
    with pytest.raises(LowerdeckError) as caught:
        calibrate(export(network.eval(), [[1, 8]]), quantizer, drawn, len(drawn), training)
    return str(caught.value)


FUNCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "infinite": lambda y, limits: torch.where(y > 0, torch.log(y.relu()).relu(), -torch.inf).clamp(min=-3),
    "large": lambda y, limits: (y * SMALLEST).clamp(-3, 3),
}


@pytest.mark.parametrize("is_qat", [False, True], ids=["calibrated", "trained"])
@pytest.mark.parametrize("target", quick_first(["neutron_imxrt700", "ethos_u55_128"]))
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_line_is_named_and_not_the_learning_rate(name: str, target: str, is_qat: bool) -> None:
    """A number as large as the largest float32 left others one step; infinity was said to come of the training."""
    message = refusal(Between(FUNCTIONS[name]), target, is_qat=is_qat)
    assert "have infinite values (or nearly infinite ones) for calibration samples" in message
    assert "test_infinities.py:" in message
    assert "learning_rate" not in message


@pytest.mark.parametrize("is_qat", [False, True], ids=["calibrated", "trained"])
@pytest.mark.parametrize("target", quick_first(["ethos_u55_128", "neutron_imxrt700"]))
def test_a_constant_is_named(target: str, is_qat: bool) -> None:
    network = Between(lambda y, limits: (y - limits).relu())
    assert "in the constant limits" in refusal(network, target, is_qat=is_qat)


@pytest.mark.parametrize("target", quick_first(["cortex_m55", "ethos_u55_128"]))
def test_nan_is_called_so(target: str) -> None:
    message = refusal(Between(lambda y, limits: torch.nan_to_num(torch.sqrt(y), nan=0.0)), target)
    assert "would be quantized have NaN for" in message
    assert "infinite" not in message
