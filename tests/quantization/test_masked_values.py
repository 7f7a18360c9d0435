"""What a mask leaves keeps its logarithms, its order, and its values as outputs, on every target."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.evaluation.quantization_error import masked_in_both, sqnr_db
from lowerdeck.graph.mask_numbers import masked_outputs
from lowerdeck.steps.export import export
from tests.marks import quick_first
from tests.networks import quantized_network

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from torch.export import ExportedProgram

SHAPES = [[1, 16], [1, 10]]
KEPT = torch.tensor([1, 1, 0, 1, 1, 0, 1, 1, 1, 0.0])
LEAST = torch.tensor(-1e9)
BEAMS = torch.tensor([[0.0], [-1e9]])
TRANSITIONS = torch.randn(5, 5, generator=torch.Generator().manual_seed(0))
TRANSITIONS[0, :] = TRANSITIONS[:, 1] = -1e4
TARGETS = ["ethos_u55_128", "neutron_imxrt700", "xnnpack_cpu", "cortex_m55", "ethos_u85_256"]


def _entropy(x: Tensor, allowed: Tensor) -> Tensor:
    log = x.masked_fill(allowed <= 0, -1e8).log_softmax(-1)
    return (log.exp() * log).sum(-1)


def _categorical(x: Tensor, allowed: Tensor) -> Tensor:
    """As torch.distributions does."""
    scores = torch.where(allowed > 0, x, -1e8)
    return (scores - scores.logsumexp(-1, keepdim=True)).amax(-1)


def _written(x: Tensor, _: Tensor) -> Tensor:
    scores = x.clone()
    scores[:, 2] = -1e9
    scores[:, 5:7] = -1e9
    return scores.log_softmax(-1).amax(-1)


def _written_at_indices(x: Tensor, _: Tensor) -> Tensor:
    scores = x.clone()
    scores[:, [2, 5]] = -1e9
    return scores.log_softmax(-1).amax(-1)


def _logarithm_added(x: Tensor, allowed: Tensor) -> Tensor:
    """As RLlib's ActionMaskingRLModule does."""
    return (x + _allowed_logarithm(allowed)).log_softmax(-1).amax(-1)


def _allowed_logarithm(allowed: Tensor) -> Tensor:
    return torch.clamp(torch.log((allowed > 0).float()), min=torch.finfo(torch.float32).min)


def _best_path(x: Tensor) -> Tensor:
    """As Viterbi's algorithm: transitions to the first of five tags and from the second are forbidden."""
    scores, emissions = torch.tensor([[0.0, -1e4, -1e4, -1e4, -1e4]]), x.view(1, 2, 5)
    for step in range(2):
        best, _ = (scores.unsqueeze(1) + TRANSITIONS).max(2)
        scores = best + emissions[:, step]
    return scores.max(-1)[0]


def _divergence(x: Tensor, wanted: Tensor) -> Tensor:
    log = x.masked_fill(KEPT == 0, -1e9).log_softmax(-1)
    return nn.functional.kl_div(log, wanted, reduction="none").sum(-1)


def _cross_entropy(x: Tensor, wanted: Tensor) -> Tensor:
    return nn.functional.cross_entropy(x.masked_fill(KEPT == 0, -1e9), wanted, reduction="none")


def _weighted(x: Tensor, scores: Tensor) -> Tensor:
    weights = scores.view(1, 2, 5).flatten(1).softmax(-1).view(1, 2, 5)
    return (weights * x.masked_fill(KEPT == 0, -1e9).log_softmax(-1).view(1, 2, 5)).sum((1, 2))


def _logarithm_of_an_input(x: Tensor, allowed: Tensor) -> Tensor:
    return (x + allowed.relu().sign().log().clamp_min(-1e9)).log_softmax(-1).amax(-1)


MASKED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "returned": lambda x, _: x.masked_fill(KEPT == 0, -1e9),
    "logarithm returned": lambda x, allowed: x + _allowed_logarithm(allowed),
    "first of a sum": lambda x, _: (x + (1 - KEPT) * -1e9).topk(3)[0],
    "divergence": lambda x, allowed: _divergence(x, (x + allowed).masked_fill(KEPT == 0, -1e9).softmax(-1)),
    "layer": lambda x, _: x.masked_fill(KEPT == 0, -1e9).log_softmax(-1) @ torch.eye(10)[:, [0, 1, 3]],
    "filled": lambda x, _: x.masked_fill(KEPT == 0, -1e4).log_softmax(-1)[:, :2],
    "added": lambda x, _: (x + (1 - KEPT) * -1e9).log_softmax(-1)[:, :2],
    "added by an input": lambda x, allowed: (x + (1 - (allowed > 0).float()) * -1e9).log_softmax(-1).amax(-1),
    "product with its exponential": _entropy,
    "chosen by an input": lambda x, allowed: torch.where(allowed > 0, x, torch.tensor(-1e8)).log_softmax(-1).amax(-1),
    "written": _written,
    "logarithm added": _logarithm_added,
    "infinite": lambda x, _: x.masked_fill(KEPT == 0, -math.inf).log_softmax(-1)[:, :2],
    "gathered": lambda x, _: x.masked_fill(KEPT == 0, -1e4).log_softmax(-1).gather(1, torch.tensor([[0, 1, 3]])),
    "exponential": lambda x, _: x.masked_fill(KEPT == 0, -1e9).log_softmax(-1).exp(),
    "of torch.distributions": _categorical,
    "written at indices": _written_at_indices,
    "filled at indices": lambda x, _: x.index_fill(1, torch.tensor([2, -5]), -1e9).log_softmax(-1).amax(-1),
    "scattered": lambda x, _: x.scatter(1, torch.tensor([[2, 5]]), -1e9).log_softmax(-1).amax(-1),
    "beside others": lambda x, allowed: _beside_others(x.masked_fill(allowed <= 0, -1e9), x[:, :2]),
    "padded": lambda x, _: torch.nn.functional.pad(x, [0, 2], value=-1e9).log_softmax(-1).amax(-1),
    "at least a number": lambda x, _: x.masked_fill(KEPT == 0, -1e12).maximum(LEAST).log_softmax(-1).amax(-1),
    "logarithm of an input": _logarithm_of_an_input,
    "infinity replaced": lambda x, allowed: (x + ((allowed > 0) * 1.0).log().nan_to_num()).log_softmax(-1).amax(-1),
    "of distances": lambda x, allowed: (-x.masked_fill(allowed <= 0, 1e9)).log_softmax(-1).amax(-1),
    "subtracted": lambda x, allowed: (x - (allowed <= 0) * 1e9).log_softmax(-1).amax(-1),
    "beside a softmax": lambda x, _: _beside_softmax(x.masked_fill(KEPT == 0, -1e9)),
    "sum returned": lambda x, allowed: x + (1 - (allowed > 0).float()) * -1e9,
    "returned beside infinity": lambda x, allowed: x.masked_fill(allowed <= 0, -math.inf),
    "logarithms returned": lambda x, _: x.log_softmax(-1) + (1 - KEPT) * -1e9,
    "costs returned": lambda x, allowed: torch.where(allowed > 0, x, 1e9),
    "least of a sum": lambda x, _: (x + (1 - KEPT) * 1e9).topk(3, largest=False)[0],
    "sorted sum": lambda x, _: (x + (1 - KEPT) * -1e9).sort(-1, descending=True)[0][:, :4],
    "beams": lambda x, _: (x.view(2, 5).log_softmax(-1) + BEAMS).view(1, 10).topk(3)[0],
    "path": lambda x, _: _best_path(x),
    "cross-entropy": lambda x, allowed: _cross_entropy(x, (x + allowed).masked_fill(KEPT == 0, -1e9).softmax(-1)),
    "weights in another shape": lambda x, allowed: _weighted(x, (x + allowed).masked_fill(KEPT == 0, -1e9)),
    "sum of exponentials": lambda x, allowed: x.masked_fill(allowed <= 0, -1e8).logsumexp(-1),
    "made in the model": lambda x, _: x.view(2, 5) + torch.triu(torch.ones(2, 5) * -1e9, 1),
    "made by a difference": lambda x, _: (x.view(2, 5) + (1 - torch.ones(2, 5).tril()) * -1e9).log_softmax(-1).amax(-1),
}
GIVEN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": lambda x, allowed: x + (1 - allowed) * -1e9,
    "difference": lambda x, allowed: (x - 1e9 * (1 - allowed.unsqueeze(1))).log_softmax(-1).amax(-1),
    "read by others": lambda x, allowed: x * allowed - 1e9 * (1 - allowed),
    "in front of a maximum": lambda x, allowed: (x + (1 - allowed) * -1e9).amax(-1),
    "with a column that is kept": lambda x, allowed: x + (1 - _with_first(allowed)) * -1e9,
    "padded": lambda x, allowed: x + (1 - nn.functional.pad(allowed[:, 1:], [1, 0], value=1)) * -1e9,
    "less 1": lambda x, allowed: x + (allowed - 1) * 1e9,
    "negated": lambda x, allowed: x - (1 - allowed) * 1e5 * 1e5,
    "written": lambda x, allowed: x - 1e9 * (1 - _with_first_written(allowed)),
    "in parts": lambda x, allowed: x + (1 - torch.cat(torch.chunk(allowed, 2, 1), 1)) * -1e9,
    "limited": lambda x, allowed: x + (1 - torch.minimum(allowed.clamp(0, 1), KEPT.to(allowed.dtype))) * -1e9,
}
"""Of allowed actions that are 1, and others that are 0."""


def _with_first(allowed: Tensor) -> Tensor:
    return torch.cat([torch.ones(1, 1, dtype=allowed.dtype), allowed[:, 1:]], 1)


def _with_first_written(allowed: Tensor) -> Tensor:
    changed = allowed.clone()
    changed[:, 0] = 1
    return changed


def _beside_others(masked: Tensor, others: Tensor) -> Tensor:
    return torch.cat([masked, others], -1).log_softmax(-1).amax(-1)


def _beside_softmax(scores: Tensor) -> Tensor:
    return scores.softmax(-1) * scores.log_softmax(-1)


class Policy(nn.Module):
    """float32 [1 x 16], and [1 x 10] that are positive for actions that are allowed."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first, self.last, self.function = nn.Linear(16, 16), nn.Linear(16, 10), function

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        return self.function(3 * self.last(self.first(x).relu()), allowed)


def samples() -> list[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(1)
    return [tuple(torch.randn(shape, generator=generator) for shape in SHAPES) for _ in range(64)]


@pytest.mark.parametrize("target", quick_first(TARGETS))
@pytest.mark.parametrize("name", quick_first(list(MASKED), 3))
def test_what_is_kept_has_its_value(name: str, target: str) -> None:
    """They were 0 dB and less: 8 bits reached to the number of the mask."""
    _check(MASKED[name], target, samples())


@pytest.mark.parametrize("target", ["cortex_m55", *quick_first(TARGETS[:3], 0)])
@pytest.mark.parametrize("name", quick_first(list(GIVEN), 4))
def test_masks_that_are_inputs_stay_exact(name: str, target: str) -> None:
    """Cortex-M had 0.9995 of 1, of which -1e9 left nothing: -115 dB."""
    _check(GIVEN[name], target, [(x, (allowed > -0.5).float()) for x, allowed in samples()])


@pytest.mark.parametrize("target", quick_first(["ethos_u55_128", "xnnpack_cpu"]))
@pytest.mark.parametrize("name", quick_first(list(GIVEN)))
def test_masks_that_are_inputs_of_integers_stay_exact(name: str, target: str) -> None:
    """As tokenizers of transformers make them. Behind the cast that Arm's quantizer inserts, they had 0 dB."""
    _check(GIVEN[name], target, [(x, (allowed > -0.5).long()) for x, allowed in samples()])


def _check(function: Callable[[Tensor, Tensor], Tensor], target: str, samples: list[tuple[Tensor, ...]]) -> None:
    network, backend = Policy(function).eval(), create(target)
    dtypes = [str(each.dtype).removeprefix("torch.") for each in samples[0]]

    def exported() -> ExportedProgram:
        return export(network, SHAPES, input_dtypes=dtypes)

    module = quantized_network(network, backend, samples).module(check_guards=False)
    wanted, found = (torch.stack([each(*sample) for sample in samples]) for each in (network, module))
    (numbers,) = masked_outputs(exported())
    kept = ~masked_in_both(found.double(), wanted.double(), numbers)
    wanted, found = wanted.where(kept, 0.0), found.where(kept, 0.0)
    wanted, found = wanted - wanted.mean(0), found - wanted.mean(0)
    assert sqnr_db(float(wanted.square().sum()), float((wanted - found).square().sum())) > 18
    verdict, detail = lowered(network, samples[:8], backend)
    assert verdict == "right", detail
