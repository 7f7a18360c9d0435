"""lowerdeck.graph.joined_outputs: boxes in pixels and probabilities in one output keep their precision."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from benchmarks.in_turns import create
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.evaluation.quantization_error import sqnr_db
from lowerdeck.evaluation.quantization_loss import quantization_loss
from lowerdeck.graph.joined_outputs import mark_unlike_joins
from lowerdeck.quantization.fallback import quantizer_of
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.export import export
from lowerdeck.steps.quantize import quantize
from tests.marks import quick_first
from tests.networks import quantized_network

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from lowerdeck.contracts.evaluation import QuantizationLoss

TARGETS = ["xnnpack_cpu", "ethos_u55_128", "neutron_imxrt700", "cortex_m55"]
SHAPE = [1, 3, 8, 8]


class Head(nn.Module):
    """A small detector, whose decoder is given."""

    def __init__(self, decode: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features, self.head, self.decode = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 1), decode

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.head(self.features(x).relu()))


def _of_yolov8(y: Tensor) -> Tensor:
    """Of shape [1, 4 + 4, 64], boxes in pixels before class probabilities."""
    boxes, classes = y.flatten(2).chunk(2, 1)
    return torch.cat([boxes * 100 + 320, classes.sigmoid()], 1)


def _of_yolov5(y: Tensor) -> Tensor:
    """Of shape [1, 64, 4 + 4]; boxes are written in place of probabilities."""
    found = y.flatten(2).sigmoid().transpose(1, 2).clone()
    found[..., 0:2] = (found[..., 0:2] * 2 - 0.5) * 640
    found[..., 2:4] = (found[..., 2:4] * 2) ** 2 * 100
    return found


def _of_key_points(y: Tensor) -> Tensor:
    """Of shape [1, 1, 3]: x and y in pixels, and a probability."""
    means = y.mean((2, 3))
    return torch.stack([means[:, 0] * 256 + 128, means[:, 1] * 256 + 100, means[:, 2].sigmoid()], -1)[:, None]


def _of_best(y: Tensor) -> Tensor:
    """Of shape [1, 64, 4 + 2]: boxes, a probability, and the number of its class."""
    boxes, classes = _of_yolov8(y).transpose(1, 2).chunk(2, -1)
    scores, numbers = classes.max(-1, keepdim=True)
    return torch.cat([boxes, scores, numbers.float()], -1)


def _of_two_units(y: Tensor) -> Tensor:
    """Of shape [1, 8, 64]: columns in two units, written in place."""
    found = y.flatten(2).clone()
    found[:, :4] = found[:, :4] * 150 + 320
    return found


def _of_candidates(y: Tensor) -> Tensor:
    """Of shape [1, 8, 64]; what has a low score is 0."""
    found = _of_yolov8(y)
    return torch.where(found[:, 4:5] > 0.3, found, torch.zeros_like(found))


FACTORS = torch.tensor([640.0] * 4 + [1.0] * 4).view(1, 8, 1)
"""From shares of an image to pixels, beside probabilities."""


def _of_yolox(y: Tensor) -> Tensor:
    """Of shape [1, 4 + 4, 64]; boxes are written in place of what a layer computed, beside scores as it did."""
    found = y.flatten(2)
    found[:, 0:2] = (found[:, 0:2] + torch.arange(64) % 8) * 40
    found[:, 2:4] = found[:, 2:4].exp() * 40
    return found


DECODERS: dict[str, tuple[Callable[[Tensor], Tensor], int, int]] = {
    "YOLOv8": (_of_yolov8, 1, 4),
    "YOLOv8, transposed": (lambda y: _of_yolov8(y).transpose(1, 2), 2, 4),
    "two scales": (lambda y: torch.cat([_of_yolov8(y), _of_yolov8(y / 2)], 2), 1, 4),
    "YOLOv5": (_of_yolov5, 2, 4),
    "key points": (_of_key_points, 2, 2),
    "best class": (_of_best, 2, 4),
    "denormalised": (lambda y: y.flatten(2) * FACTORS + FACTORS * 2, 1, 4),
    "divided": (lambda y: y.flatten(2) / FACTORS, 1, 4),
    "factors": (lambda y: y.flatten(2).sigmoid() * FACTORS, 1, 4),
    "written": (_of_two_units, 1, 4),
    "logits": (lambda y: torch.cat([y.flatten(2)[:, :4] * 100 + 320, y.flatten(2)[:, 4:]], 1), 1, 4),
    "limited": (lambda y: _of_yolov8(y).clamp(0.0, 640.0) * 1.0, 1, 4),
    "candidates": (_of_candidates, 1, 4),
    "YOLOX": (_of_yolox, 1, 4),
    "beside scores": (lambda y: torch.cat([y.flatten(2)[:, :4] * 150 + 320, y.flatten(2)[:, 4:]], 1), 1, 4),
    "softmax": (lambda y: torch.cat([y.flatten(2)[:, :4] * 640, y.flatten(2)[:, 4:].softmax(1)], 1), 1, 4),
}
"""Decoders, with the dimension of their results that has the quantities, and where in it the second one begins."""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("decoder", quick_first(DECODERS))
def test_every_quantity_of_an_output_keeps_its_precision(decoder: str, target: str) -> None:
    decode, dim, first = DECODERS[decoder]
    network = Head(decode).eval()
    generator = torch.Generator().manual_seed(0)
    samples = [(torch.randn(SHAPE, generator=generator),) for _ in range(8)]
    quantized = quantized_network(network, create(target), samples).module(check_guards=False)

    expected = torch.cat([network(*inputs) for inputs in samples]).detach()
    actual = torch.cat([quantized(*inputs) for inputs in samples])
    for start, end in ((0, first), (first, first + 1)):
        signal, noise = (each.narrow(dim, start, end - start) for each in (expected, expected - actual))
        assert sqnr_db(float(signal.square().sum()), float(noise.square().sum())) > 30


def _marked(function: Callable[[Tensor, Tensor], Tensor]) -> list[str]:
    class Network(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return function(x, y)

    program = export(Network().eval(), [[2, 6], [2, 6]])
    model = program.module(check_guards=False)
    assert isinstance(model, torch.fx.GraphModule)
    return [node.name for node in mark_unlike_joins(model)]


WEIGHTS = torch.ones(6, 3)
MEANS, DEVIATIONS = torch.tensor([1013.0, 20.0, 0.5]), torch.tensor([10.0, 5.0, 0.1])
UNLIKE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "concatenated": lambda x, y: torch.cat([x, y.sigmoid()], 1),
    "stacked": lambda x, y: torch.hstack([x, y.softmax(-1)]),
    "of booleans": lambda x, y: torch.cat([x, (y > 0).float()], 1),
    "of integers": lambda x, y: torch.cat([x.sigmoid(), y.argmax(1, keepdim=True).float()], 1),
    "of products": lambda x, y: torch.cat([x, y.sigmoid() * nn.functional.hardsigmoid(x)], 1),
    "of limited numbers": lambda x, y: torch.cat([x, y.clamp(0.0, 1.0).sqrt()], 1),
    "of the largest": lambda x, y: torch.cat([x, y.sigmoid().amax(1, keepdim=True)], 1),
    "of inverse probabilities": lambda x, y: torch.cat([x, 1 - y.sigmoid()], 1),
    "of powers": lambda x, y: torch.cat([x, y.sigmoid() ** 2], 1),
    "of means": lambda x, y: torch.cat([x, (y.sigmoid() + y.softmax(1)) / 2], 1),
    "of shifted numbers": lambda x, y: torch.cat([x, 0.5 * (y.tanh() + 1)], 1),
    "of a sigmoid by hand": lambda x, y: torch.cat([x, 1 / (1 + torch.exp(-y))], 1),
    "of a hard sigmoid by hand": lambda x, y: torch.cat([x, nn.functional.relu6(y + 3) / 6], 1),
    "of directions": lambda x, y: torch.cat([x, nn.functional.normalize(y, dim=1)], 1),
    "of half precision": lambda x, y: torch.cat([x, y.sigmoid()], 1).half().float(),
    "padded": lambda x, y: nn.functional.pad(x, (0, 6)) + nn.functional.pad(y.sigmoid(), (6, 0)),
    "chosen": lambda x, y: torch.where(torch.arange(6) < 4, x, y.sigmoid()),
    "copied": lambda x, y: (
        torch.zeros(2, 12).index_copy(1, torch.arange(6), x).index_copy(1, torch.arange(6, 12), y.sigmoid())
    ),
    "that counts where a score is high": lambda x, y: (lambda z: z * (z[:, 6:7] > 0.5).float())(
        torch.cat([x, y.sigmoid()], 1)
    ),
    "in units": lambda x, _: (x @ WEIGHTS) * torch.tensor([10.0, 5.0, 0.1]),
    "in units, turned": lambda x, _: torch.tensor([0.5, 20.0, 1013.0]) - x @ WEIGHTS,
    "in units, divided": lambda x, _: ((x @ WEIGHTS) / torch.tensor([0.1, 1.0, 20.0])).relu(),
    "joined in units": lambda x, _: torch.stack([(x @ WEIGHTS)[:, 0] * 100, (x @ WEIGHTS)[:, 1] * 0.2], 1),
    "far from each other": lambda x, _: torch.cat([x @ WEIGHTS * 10 + 1013, x @ WEIGHTS * 10 + 20], 1),
    "of a batch norm": lambda x, _: nn.functional.batch_norm(
        (x @ WEIGHTS).relu(), torch.zeros(3), torch.tensor([1e-4, 1.0, 4.0])
    ),
    "of the factors of a batch norm": lambda x, _: nn.functional.batch_norm(
        x @ WEIGHTS, torch.zeros(3), torch.ones(3), weight=torch.tensor([100.0, 1.0, 4.0])
    ),
    "of pixels whose parts a layer reads": lambda x, y: (
        torch.cat([x @ torch.ones(6, 6) * 640, y.sigmoid()], 1)[:, 6:] @ WEIGHTS
    ),
    "far from zero": lambda x, _: (x @ WEIGHTS) * 10 + 1013,
    "far from zero, turned": lambda x, _: 1000 - x @ WEIGHTS,
    "in kelvin": lambda x, _: ((x @ WEIGHTS) * 5 + 293).relu(),
    "beside what is left out": lambda _, y: torch.where(y.sigmoid() > 0.5, y.sigmoid(), -999.0),
    "filled where they are left out": lambda _, y: y.softmax(1).masked_fill(y < 0, -100.0),
    "beside what is left out, of a tensor": lambda x, y: torch.where(
        y > 0, x @ torch.ones(6, 6), torch.full_like(y, 500.0)
    ),
    "padded far from them": lambda _, y: nn.functional.pad(y.sigmoid(), (1, 1), value=-1000.0),
    "added to a product": lambda x, _: torch.addcmul(MEANS, x @ WEIGHTS, DEVIATIONS),
    "added to a quotient": lambda x, _: torch.addcdiv(MEANS, x @ WEIGHTS, 1 / DEVIATIONS),
    "between two": lambda x, _: torch.lerp(MEANS, MEANS + DEVIATIONS, x @ WEIGHTS),
    "multiplied while it is added": lambda x, _: torch.add(torch.zeros(1), x @ WEIGHTS + MEANS, alpha=2),
    "whose parts are read": lambda x, y: torch.cat([x, y.tanh()], 1)[:, :3].exp(),
}
ALIKE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "numbers": lambda x, y: torch.cat([x.relu(), y], 1),
    "probabilities": lambda x, y: torch.cat([x.sigmoid(), y.sigmoid() * x.tanh()], 1),
    "beside a constant": lambda x, _: torch.cat([x.sigmoid(), torch.zeros(2, 1)], 1),
    "read by a layer": lambda x, y: torch.cat([x, y.sigmoid()], 1) @ torch.ones(12, 3),
    "of a tensor and its positive numbers": lambda x, y: torch.cat([x, x.relu(), x.clone().flip(1), y], 1),
    "of parts of a sum": lambda x, y: torch.cat([(x + y)[:, :2], (x + y)[:, 2:].relu()], 1),
    "of what a layer made": lambda x, y: torch.cat([x, (x @ torch.ones(6, 6)).relu() + y], 1),
    "of many steps": lambda x, y: torch.stack([x * factor + y for factor in range(12)] + [x]),
    "larger ones": lambda x, y: torch.cat([x, y.clamp(0.0, 6.0)], 1),
    "multiples": lambda x, y: torch.cat([x, y.sigmoid() * 640], 1),
    "reciprocals": lambda x, y: torch.cat([x, 1 / y.tanh()], 1),
    "roots": lambda x, y: torch.cat([x, (y.sigmoid() * 4).sqrt()], 1),
    "scaled alike": lambda x, _: (x @ WEIGHTS) * 100 + 1013,
    "in degrees": lambda x, _: (x @ WEIGHTS) * 10 + 20,
    "of bytes": lambda x, _: ((x @ WEIGHTS) + 127.5) / 255,
    "beside -1": lambda _, y: torch.where(y.sigmoid() > 0.5, y.sigmoid(), -1.0),
    "beside a mask": lambda x, _: torch.where(x > 0, x @ torch.ones(6, 6), -1e9),
    "beside what may be as far": lambda x, _: torch.where(x > 0, x, -999.0),
    "that a layer reads beside a constant": lambda _, y: torch.where(y > 0, y.sigmoid(), -999.0) @ WEIGHTS,
    "scaled almost alike": lambda x, _: (
        (x @ WEIGHTS) * torch.tensor([0.229, 0.224, 0.225]) + torch.tensor([0.485, 0.456, 0.406])
    ),
    "of colours": lambda x, _: (x @ WEIGHTS) + torch.tensor([103.939, 116.779, 123.68]),
    "boxes of four strides": lambda x, _: (x @ WEIGHTS) * torch.tensor([8.0, 16.0, 32.0]),
    "of one unit": lambda x, _: torch.cat([(x @ WEIGHTS) * 100 + 320, (x @ WEIGHTS) * 100 + 100], 1),
    "of a batch norm behind a layer": lambda x, _: nn.functional.batch_norm(
        x @ WEIGHTS, torch.tensor([3.0, 0.0, -1.0]), torch.tensor([1e-4, 1.0, 4.0])
    ),
    "beside a tanh, cropped in front of a layer": lambda x, y: (
        torch.cat([x @ torch.ones(6, 6), y.tanh() * x.sigmoid()], 1)[:, :-2] @ torch.ones(10, 2)
    ),
    "of a state, read apart by layers": lambda x, y: (
        torch.stack(torch.cat([x @ torch.ones(6, 6), y.tanh()], 1).chunk(2, 1)).sum(0) @ WEIGHTS
    ),
    "gains in front of a layer that reads a part": lambda x, _: (
        ((x @ WEIGHTS) * torch.tensor([10.0, 5.0, 0.1]) + x @ WEIGHTS)[:1] @ torch.ones(3, 2)
    ),
    "masked": lambda x, _: (x @ WEIGHTS) * torch.tensor([1.0, 0.0, 1.0]),
    "weighed by many": lambda x, _: (x @ WEIGHTS)[:, :1] * torch.hann_window(512),
    "scaled in front of a layer": lambda x, _: ((x @ WEIGHTS) * torch.tensor([10.0, 5.0, 0.1])) @ torch.ones(3, 2),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_unlike_quantities_are_found(name: str) -> None:
    assert _marked(UNLIKE[name])


WEIGHTLESS: dict[str, Callable[[Tensor], Tensor]] = {
    "a hard swish": nn.functional.hardswish,
    "numbers in place of NaN": torch.nan_to_num,
    "pooling": lambda z: nn.functional.avg_pool1d(z[:, None], 1),
    "interpolation": lambda z: nn.functional.interpolate(z[:, None], scale_factor=2.0),
    "a mean": lambda z: z.mean(0),
    "a sum of two": lambda z: z + z.flip(0),
    "a product of two": lambda z: z * nn.functional.softplus(z),
    "rounding": torch.round,
    "ELU": lambda z: nn.functional.elu(z) + 1,
    "adding in place": lambda z: torch.zeros(2, 3).index_add(0, torch.tensor([0, 1]), z),
}


@pytest.mark.parametrize("name", WEIGHTLESS)
def test_what_has_no_weights_hands_unlike_quantities_on(name: str) -> None:
    def handed_on(x: Tensor) -> Tensor:
        return WEIGHTLESS[name]((x @ WEIGHTS) * DEVIATIONS + MEANS)

    assert len(_marked(lambda x, _: handed_on(x))) > 2
    assert _marked(lambda x, _: handed_on(x).reshape(-1, 3) @ torch.ones(3, 2)) == []


@pytest.mark.parametrize("name", ALIKE)
def test_what_has_one_kind_or_is_read_as_one_is_quantized(name: str) -> None:
    assert _marked(ALIKE[name]) == []


def _lost(network: nn.Module, target: str) -> QuantizationLoss | None:
    samples = [(torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)),) for seed in range(4)]
    observing, converting = (quantizer_of(create(target), QuantizationScheme(name="int8")) for _ in range(2))
    assert observing is not None
    assert converting is not None
    program = export(network.eval(), [SHAPE])
    calibrated = calibrate(program, observing, samples, len(samples))
    quantized, tensors = quantize(program, converting, calibrated)
    return quantization_loss(export(network, [SHAPE]), quantized, samples, tensors, 10.0)


def test_quantities_that_only_values_tell_apart_are_named() -> None:
    """Boxes in pixels beside scores as the last convolution computes them."""

    def boxes(factor: float) -> Head:
        def decode(y: Tensor) -> Tensor:
            boxes, scores = y.chunk(2, 1)
            return torch.cat([boxes * boxes * factor, scores], 1)

        return Head(decode)

    assert _lost(boxes(2.0), "xnnpack_cpu") is None
    found = _lost(boxes(500.0), "xnnpack_cpu")
    assert found is not None
    assert found.sqnr_db < 1
    assert re.fullmatch(
        r"cat \(aten\.cat\.default\): [-0-9.]+ dB, its inputs [3-5]\d\.\d dB; try to return its tensor 1 as an output "
        r"of its own, because all that is joined has one scale",
        str(found.layers[0]),
    )


def test_a_join_that_only_a_comparison_reads_in_8_bits_is_not_named() -> None:
    def decode(y: Tensor) -> Tensor:
        found = _of_yolov8(y)
        return torch.where(found[:, 4:5] > 0.5, found, torch.zeros_like(found))

    assert _lost(Head(decode), "ethos_u55_128") is None


FAR: dict[str, Callable[[Tensor], Tensor]] = {
    "pressure": lambda y: y.mean((2, 3)) * 10 + 1013,
    "what is left out": lambda y: (lambda p: torch.where(p > 0.5, p, -999.0))((4 * y.mean((2, 3))).sigmoid()),
}


@pytest.mark.parametrize("target", quick_first(TARGETS))
@pytest.mark.parametrize("name", FAR)
def test_a_quantity_keeps_its_precision_far_from_zero_and_beside_constants(name: str, target: str) -> None:
    network = Head(FAR[name]).eval()
    generator = torch.Generator().manual_seed(0)
    samples = [(torch.randn(SHAPE, generator=generator) * 2,) for _ in range(8)]
    quantized = quantized_network(network, create(target), samples).module(check_guards=False)

    expected = torch.cat([network(*inputs) for inputs in samples]).detach()
    actual = torch.cat([quantized(*inputs) for inputs in samples])
    kept = (expected > 0) & (actual > 0)
    assert kept.float().mean() > 0.2
    expected, actual = expected[kept], actual[kept]
    signal, noise = (expected - expected.mean()).square().sum(), (expected - actual).square().sum()
    assert sqnr_db(float(signal), float(noise)) > 20


def test_what_starts_as_an_empty_tensor_is_compared_part_by_part() -> None:
    """`torch.cat` takes a tensor of shape [0] beside any other."""
    assert _lost(Head(lambda y: torch.cat([torch.tensor([]), y, y * 2], 1)), "xnnpack_cpu") is None
