"""lowerdeck.quantization.masks: masked attention keeps its steps for the scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.samples import Sample
from lowerdeck.evaluation.layerwise_sqnr import compare_layers
from lowerdeck.evaluation.quantization_error import IDENTICAL_DB, sqnr_db
from lowerdeck.steps.export import export
from tests.marks import quick_first
from tests.networks import quantized_network

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from lowerdeck.contracts.samples import Split

SHAPE = [1, 8, 16]
LATER = torch.ones(8, 8).triu(1).bool()
INFINITE = torch.zeros(8, 8).masked_fill(LATER, -torch.inf)
SMALLEST = torch.finfo(torch.float32).min
MASKS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "added": lambda scores: scores + INFINITE,
    "filled": lambda scores: scores.masked_fill(LATER, -torch.inf),
    "chosen": lambda scores: torch.where(LATER, torch.tensor(-torch.inf), scores),
    "computed": lambda scores: scores + (torch.arange(8) > torch.arange(8)[:, None]).float() * SMALLEST,
    "by the scores": lambda scores: scores.masked_fill(scores < scores.mean(-1, keepdim=True), -torch.inf),
}


class Attention(nn.Module):
    def __init__(self, mask: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts, self.last, self.mask = nn.Linear(16, 48), nn.Linear(16, 16), mask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.parts(x).chunk(3, -1)
        scores = self.mask(query @ key.transpose(1, 2))
        found: torch.Tensor = self.last(scores.softmax(-1) @ value)
        return found


def samples() -> list[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(SHAPE, generator=generator),) for _ in range(8)]


def quantized(network: nn.Module, target: str) -> ExportedProgram:
    return quantized_network(network, create(target), samples())


def outputs(program: ExportedProgram, given: Sequence[tuple[torch.Tensor, ...]] = ()) -> torch.Tensor:
    """The first output for every sample, or for what is given."""
    module = program.module(check_guards=False)
    found = [module(*sample) for sample in given or samples()]
    return torch.stack([each[0] if isinstance(each, tuple) else each for each in found])


@pytest.mark.parametrize("target", quick_first(["neutron_imxrt700", "xnnpack_cpu", "ethos_u55_128", "cortex_m55"]))
@pytest.mark.parametrize("mask", quick_first(MASKS))
def test_a_mask_leaves_the_scores_their_steps(mask: str, target: str) -> None:
    """Infinity in a range left 3 to 18 dB of the result, and the smallest float32 made LiteRT end the process."""
    network = Attention(MASKS[mask]).eval()
    wanted, found = torch.stack([network(*sample) for sample in samples()]), outputs(quantized(network, target))
    assert sqnr_db(float(wanted.square().sum()), float((wanted - found).square().sum())) > 25


class Weights(Attention):
    """Returns the softmax itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, _ = self.parts(x).chunk(3, -1)
        return self.mask(query @ key.mT).softmax(-1)


@pytest.mark.parametrize(
    ("network", "mask", "target"),
    quick_first(
        [
            (Attention, "filled", "ethos_u85_256"),
            (Weights, "filled", "ethos_u85_256"),
            (Attention, "computed", "neutron_imxrt700"),
            (Attention, "added", "neutron_imxrt700"),
            (Weights, "added", "neutron_imxrt700"),
        ],
        quick=3,
    ),
)
def test_a_masked_attention_is_delegated_as_a_whole(network: type[Attention], mask: str, target: str) -> None:
    verdict, detail = lowered(network(MASKS[mask]).eval(), samples(), create(target))
    assert verdict == "right", detail
    delegated, total = detail.split(" operators", maxsplit=1)[0].split(" of ")
    assert delegated == total


def _scattered(scores: torch.Tensor) -> torch.Tensor:
    kept, places = scores.topk(3, -1)
    return torch.full_like(scores, -torch.inf).scatter(-1, places, kept)


def _zeros_scattered(scores: torch.Tensor) -> torch.Tensor:
    mask = scores.new_full(scores.shape, -torch.inf)
    return scores + mask.scatter_(-1, scores.topk(3, -1).indices, 0.0)


@pytest.mark.parametrize("target", ["neutron_imxrt700", "xnnpack_cpu", "ethos_u55_128", "cortex_m55"])
@pytest.mark.parametrize("mask", [_scattered, _zeros_scattered])
def test_scores_that_are_scattered_into_a_mask_keep_their_steps(
    mask: Callable[[torch.Tensor], torch.Tensor], target: str
) -> None:
    """As a mixture of experts keeps the largest: refused as infinite. Steps decide which ones are kept."""
    network = Attention(mask).eval()
    wanted, found = torch.stack([network(*sample) for sample in samples()]), outputs(quantized(network, target))
    assert sqnr_db(float(wanted.square().sum()), float((wanted - found).square().sum())) > 17


OF_NUMBERS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "numbers": lambda scores, left_out: scores + left_out.float() * SMALLEST,  # as transformers' BERT does
    "as BERT": lambda scores, left_out: scores + (1.0 - (~left_out).float()) * -10000.0,
    "product": lambda scores, left_out: scores + (1 - (~left_out).float()) * -1e9,
    "subtracted": lambda scores, left_out: scores - left_out.float() * 1e9,
    "scaled": lambda scores, left_out: scores.masked_fill(left_out, -1e9) / 2,
    "multiplied": lambda scores, left_out: scores * ~left_out - 1e9 * left_out,
    "of attention": lambda scores, left_out: F.scaled_dot_product_attention(
        scores, scores, scores, attn_mask=torch.where(left_out, SMALLEST, 0.0)
    ),
}


class Padded(nn.Module):
    """An attention of PyTorch's, or of our own, that leaves out keys: float32 [1 x 8 x 16], and bool [1 x 8]."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention, self.own, self.kind = (
            nn.MultiheadAttention(16, 4, batch_first=True),
            Attention(MASKS["added"]),
            kind,
        )
        with torch.no_grad():
            self.attention.in_proj_weight.mul_(2)
            self.own.parts.weight.mul_(2)

    def forward(self, x: torch.Tensor, left_out: torch.Tensor) -> torch.Tensor:
        if self.kind in OF_NUMBERS:
            self.own.mask = lambda scores: OF_NUMBERS[self.kind](scores, left_out[:, None])
            return cast(torch.Tensor, self.own(x))
        later = LATER if self.kind == "two masks" else None
        found: torch.Tensor
        found, _ = self.attention(
            x, x, x, key_padding_mask=left_out, attn_mask=later, need_weights=self.kind != "without weights"
        )
        return found


@pytest.mark.parametrize("target", ["neutron_imxrt700", "xnnpack_cpu", "ethos_u55_128", "cortex_m55"])
@pytest.mark.parametrize(
    "kind", quick_first(["subtracted", "stock", "without weights", "two masks", *OF_NUMBERS], quick=2)
)
def test_a_mask_of_an_input_leaves_the_scores_their_steps(kind: str, target: str) -> None:
    """Calibrate ended in an exception, or 15 to 20 dB were left: what is added was not below the smallest score.
    -1e9 times booleans, subtracted or scaled, left 0 to 5 dB."""
    network, backend = Padded(kind).eval(), create(target)
    given = [(x, (torch.arange(8) >= 3 + index % 6)[None]) for index, (x,) in enumerate(samples())]
    program = quantized_network(network, backend, given)
    wanted, found = torch.stack([network(*sample) for sample in given]), outputs(program, given)
    assert sqnr_db(float(wanted.square().sum()), float((wanted - found).square().sum())) > 25


def test_values_as_low_as_a_mask_elsewhere_keep_their_range() -> None:
    """A network on raw numbers, whose own bound is that of masks, and which has a masked attention behind it."""

    class Raw(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.attention = nn.Linear(16, 16), Attention(MASKS["added"])

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x = self.scale((x * 5e3).clamp(-1e4, 1e4))
            return x, self.attention(x / 5e3)

    network = Raw().eval()
    wanted, found = torch.stack([network(*each)[0] for each in samples()]), outputs(quantized(network, "ethos_u55_128"))
    assert sqnr_db(float(wanted.square().sum()), float((wanted - found).square().sum())) > 25


@pytest.mark.parametrize("target", quick_first(["neutron_imxrt700", "xnnpack_cpu", "ethos_u55_128", "cortex_m55"]))
@pytest.mark.parametrize("mask", quick_first([name for name in MASKS if name != "by the scores"]))
def test_layers_are_compared_by_what_a_mask_keeps(mask: str, target: str) -> None:
    """-1e4 against what stands for it in int8 made a masked addition the worst layer of every report, with 0 dB."""
    network = Attention(MASKS[mask]).eval()
    exported, program = export(network, [SHAPE]), quantized(network, target)
    split = [Sample(inputs=inputs, label=None, digest="") for inputs in samples()]
    layers = compare_layers(exported, program, cast("Split", split), range(8))
    assert "aten.linear.default" in {layer.operator for layer in layers}
    assert all(25 < layer.sqnr_db < IDENTICAL_DB for layer in layers), layers


def test_infinity_that_would_be_quantized_is_refused_with_its_module() -> None:
    class Endless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.behind = nn.Linear(16, 16), nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.before(x)
            found: torch.Tensor = self.behind(x.masked_fill(x > 0, -torch.inf))
            return found

    with pytest.raises(
        LowerdeckError, match=r"infinite values .* \(.*test_masks.py:\d+\), behind \(\S*\): .*keep_float"
    ):
        quantized(Endless().eval(), "xnnpack_cpu")


@pytest.mark.parametrize("target", ["neutron_imxrt700", "xnnpack_cpu", "ethos_u55_128", "cortex_m55"])
def test_infinity_among_finite_values_is_refused_with_its_line(target: str) -> None:
    """Histograms skip it, so that calibrate ended where it wrote the ranges as JSON."""

    class Logarithm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.behind = nn.Linear(16, 16), nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.behind(torch.sigmoid(torch.log(torch.relu(self.before(x))) * 0.2))
            return found

    with pytest.raises(LowerdeckError, match=r"infinite values .* in the model itself \(.*test_masks.py:\d+\): no"):
        quantized(Logarithm().eval(), target)


def test_an_infinite_constant_is_refused_by_its_name() -> None:
    """One observer serves both operands, so that the finite layer was named."""

    class AtLeast(nn.Module):
        lowest: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.layer, self.behind = nn.Linear(16, 16), nn.Linear(16, 4)
            self.register_buffer("lowest", torch.full((16,), torch.finfo(torch.float32).min))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.behind(torch.maximum(self.layer(x), self.lowest))
            return found

    with pytest.raises(LowerdeckError, match=r"infinite values .* in the constant \w*lowest: no"):
        quantized(AtLeast().eval(), "neutron_imxrt700")
