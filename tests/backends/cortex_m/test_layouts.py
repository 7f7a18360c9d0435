"""lowerdeck.backends.cortex_m.layouts: shapes change where memory is channels-last."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from executorch.exir.pass_base import PassResult
from torch import nn
from torch.nn import functional as F

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.artifacts.edge_programs import read_edge_program, write_edge_program
from lowerdeck.backends.cortex_m import partitioner
from lowerdeck.contracts.errors import ConversionError
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.runtime.loading import open_made_program
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.convert import convert
from lowerdeck.steps.export import export
from lowerdeck.steps.partition import partition
from lowerdeck.steps.quantize import quantize
from tests.conftest import backend_for
from tests.marks import quick_first
from tests.networks import Called
from tests.project import REPOSITORY

SHAPES = [[1, 2, 6, 8]]


class Then(nn.Module):
    """A function between two convolutions."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor], channels: int) -> None:
        super().__init__()
        self.before, self.function, self.after = nn.Conv2d(2, 4, 3), function, nn.Conv2d(channels, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.after(self.function(torch.relu(self.before(x))))
        return scores


class BehindOneChannel(nn.Module):
    """Tensors with one channel, which are contiguous and channels-last, become one with two."""

    def __init__(self) -> None:
        super().__init__()
        self.single = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.single(x.mean(1, keepdim=True).repeat(1, 1, 1, 2))
        return torch.cat([y, y], 1).flatten(1).view(1, 1, 8, 12)


@pytest.mark.parametrize(
    ("function", "channels"),
    quick_first(
        [
            (nn.ChannelShuffle(2), 4),
            (lambda x: torch.stack([x, x], 2).flatten(1, 2), 8),
            (lambda x: x.view(1, 2, 2, 4, 6).sum(2), 2),
            (lambda x: torch.max_pool2d(x, 2).view(1, 2, 2, 2, 3).flatten(1, 2), 4),
            (BehindOneChannel(), 1),
            (lambda x: F.pad(x * x.flatten(2).softmax(-1).view_as(x), (1, 1, 0, 1)), 4),
            (lambda x: F.pad(x.flatten(1).softmax(1).view_as(x) - x, (1, 1, 0, 1)), 4),
        ]
    ),
    ids=["channel shuffle", "stack", "view", "view behind a pool", "one channel", "product", "difference"],
)
def test_a_tensor_keeps_its_elements_where_its_shape_changes(
    function: Callable[[torch.Tensor], torch.Tensor], channels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    monkeypatch.chdir(tmp_path)
    backend = backend_for(yaml.safe_load((REPOSITORY / "conf" / "target" / "cortex_m55.yaml").read_text()))
    network, samples = Then(function, channels).eval(), [(torch.randn(*SHAPES[0]),) for _ in range(3)]
    observing, converting = (backend.quantizer(QuantizationScheme(name="int8")) for _ in range(2))
    assert observing is not None
    assert converting is not None

    def exported() -> torch.export.ExportedProgram:
        return export(network, SHAPES, memory_format=backend.memory_format)

    state = calibrate(exported(), observing, samples, len(samples))
    quantized, _ = quantize(exported(), converting, state)
    made = partition(quantized, backend)
    write_edge_program(made.program, made.edge_config)
    (tmp_path / "work").mkdir()
    converted = convert(read_edge_program(), made.plan, backend, tmp_path / "work")
    program, module = open_made_program(converted.program, {}), quantized.module(check_guards=False)
    (scale,) = converted.output_scales
    assert scale is not None
    for (sample,) in samples:
        given = sample.to(memory_format=torch.channels_last)
        assert float((program(given)[0] - module(given)).abs().max()) <= 1.01 * scale


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x.argmax(1), id="the result has fewer dimensions"),
        pytest.param(lambda x: x.log_softmax(1), id="the kernel computes something else in channels-last memory"),
        pytest.param(lambda x: torch.einsum("bchw,bdhw->bcd", x, x).topk(2, 1)[0], id="several results"),
        pytest.param(nn.GroupNorm(2, 4), id="the kernel takes contiguous memory alone"),
        pytest.param(lambda x: F.gelu(x * 2 + 0.5) - 1, id="constants of one element"),
        pytest.param(nn.PReLU(4), id="a constant for each channel"),
        pytest.param(lambda x: x.flatten(2).max(2)[0], id="a number in place of a list of them"),
        pytest.param(nn.Sequential(nn.AdaptiveAvgPool2d(3), nn.Conv2d(4, 3, 1)), id="an operator that forgets it"),
        pytest.param(lambda x: (x.cumsum(1) + x.cumsum(1).argmax(1, keepdim=True)) * x, id="a tensor read in both"),
        pytest.param(lambda x: torch.cat([x[:, [3, 0]], torch.where(x > 0.3, x, -x)], 1), id="indices and a mask"),
        pytest.param(nn.Sequential(nn.PixelShuffle(2), nn.PixelUnshuffle(2)), id="one channel, in either order"),
        pytest.param(
            nn.Sequential(nn.Hardsigmoid(), nn.Upsample(scale_factor=2, mode="bicubic")),
            id="many operators",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_portable_kernels_take_the_layouts_that_they_get(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """convert executes them by ExecuTorch's runtime: `2 input tensors have different dim orders`."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), Called(function)).eval()
    verdict, detail = lowered(network, [(torch.randn(*SHAPES[0]),) for _ in range(8)], create("cortex_m55"))
    assert verdict == "right", detail


def test_a_kernel_that_takes_another_layout_is_refused_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the pass that settles layouts is at fault; the refusal named the kernel alone."""
    monkeypatch.setattr(partitioner, "settle_kernels", lambda program: lambda module: PassResult(module, False))
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(2, 4, 3), Called(lambda x: x.softmax(-1)), nn.Conv2d(4, 3, 1)).eval()
    with pytest.raises(ConversionError) as caught:
        lowered(network, [(torch.randn(*SHAPES[0]),) for _ in range(12)], create("cortex_m55"))
    (line,) = [line for line in str(caught.value).splitlines() if "cortex_m::softmax.out, which computes" in line]
    assert "networks.py:" in line
    assert line.endswith("and the program has a tensor [1, 4, 4, 6] in the order [0, 2, 3, 1]")


class Camera(nn.Module):
    """A grey image as a camera gives it, and which pixels count: uint8 and bool [1 x 1 x 8 x 8] -> [1 x 4 x 8 x 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 4, 3, padding=1)

    def forward(self, image: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(image.float() / 255) * mask
        return result


def test_one_channel_is_cast() -> None:
    """Refused: the kernel compares the order of dimensions that strides leave open with the one that it is given."""
    torch.manual_seed(0)
    drawn = [(torch.randint(0, 256, (1, 1, 8, 8), dtype=torch.uint8), torch.rand(1, 1, 8, 8) > 0.5) for _ in range(8)]
    verdict, detail = lowered(Camera().eval(), drawn, create("cortex_m55"))
    assert verdict == "right", detail


def _after_contiguous_memory(*layers: nn.Module) -> nn.Module:
    """Layers behind a transposed convolution of contiguous memory, which CMSIS-NN's makes channels-last."""
    one_channel = nn.InstanceNorm2d(4, affine=True), nn.Conv2d(4, 1, (3, 1)), nn.Hardtanh()
    logarithm = Called(lambda x: torch.log(torch.relu(x) + 1))
    return nn.Sequential(*one_channel, nn.ConvTranspose2d(1, 4, 3, 2, 1), logarithm, *layers)


@pytest.mark.parametrize(
    "function",
    quick_first(
        [
            pytest.param(lambda x: torch.softmax(x, -1), id="softmax"),
            pytest.param(lambda x: x.permute(0, 1, 3, 2), id="transposition"),
            pytest.param(nn.Linear(6, 6), id="linear"),
            pytest.param(lambda x: torch.maximum(x, x.mean(3, keepdim=True)), id="maximum"),
            pytest.param(lambda x: F.avg_pool2d(torch.minimum(x, 0.3 - x), (3, 1), 1, (1, 0)), id="minimum"),
            pytest.param(
                lambda x: F.avg_pool2d(x, 2, divisor_override=3) + F.max_pool2d(x, 2), id="pooling on portable kernels"
            ),
            pytest.param(lambda x: F.max_pool2d(x.flatten(1).view_as(x), 2), id="pooling behind a view"),
            pytest.param(_after_contiguous_memory(nn.AvgPool2d((3, 1), 1, (1, 0))), id="pooling that pads"),
            pytest.param(_after_contiguous_memory(nn.ZeroPad2d((1, 2, 0, 1))), id="padding"),
            pytest.param(
                lambda x: torch.maximum(x, torch.tensor([0.1, 0.2, 0.3, 0.4])[:, None, None]), id="by channel"
            ),
        ],
        4,
    ),
)
def test_cmsis_nn_gets_the_layouts_that_its_kernels_know(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """They do not look at it, so that the host refuses a program with another one."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(2, 4, 3), Called(function), nn.LazyConv2d(3, 1)).eval()
    network(torch.randn(*SHAPES[0]))
    verdict, detail = lowered(network, [(torch.randn(*SHAPES[0]),) for _ in range(8)], create("cortex_m55"))
    assert verdict == "right", detail
