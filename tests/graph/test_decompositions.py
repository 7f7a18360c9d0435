"""Operators without a kernel are built, with the results that PyTorch has."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.contracts.backends import DynamicDimension
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.export import export
from lowerdeck.steps.quantize import quantize
from tests.marks import quick_first

_Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _doubled_first_row(y: torch.Tensor) -> torch.Tensor:
    copy = y.clone()
    copy[:, :, 0] *= 2
    return copy


FUNCTIONS: dict[str, _Function] = {
    "addmm": lambda y, w: torch.addmm(w[0], y[0, 0], w),
    "addmm with factors": lambda y, w: torch.addmm(w[0], y[0, 0], w, beta=2, alpha=0.5),
    "addmm with a row": lambda y, w: torch.addmm(w[:1], y[0, 0], w),
    "addmm with a number": lambda y, w: torch.addmm(w[0, :1], y[0, 0], w),
    "addmm of what is computed": lambda y, w: torch.addmm(y[0, 0], y[0, 1], y[0, 2], alpha=0.5),
    "addmm with nothing of what is no number": lambda y, w: torch.addmm(w[0] * torch.nan, y[0, 0], w, beta=0),
    "local_response_norm": lambda y, w: F.local_response_norm(y, 2),
    "local_response_norm of vectors": lambda y, w: F.local_response_norm(y[:, :, 0], 3),
    "pooling of channels": lambda y, w: F.avg_pool3d(y[None], (3, 1, 1), 1),
    "addbmm": lambda y, w: torch.addbmm(y[0, 0], y[0], y[0].mT, beta=0.5),
    "baddbmm": lambda y, w: torch.baddbmm(w, y[0], y[0].mT[..., :8], beta=2, alpha=0.5),
    "addmv": lambda y, w: torch.addmv(w[0], w, y[0, 0, 0]),
    "bilinear": lambda y, w: F.bilinear(y, y, w.view(1, 8, 8).expand(2, 8, 8), w[0, :2]),
    "erfc": lambda y, w: torch.erfc(y),
    "exp2": lambda y, w: torch.exp2(y),
    "batch norm of the batch": lambda y, w: F.batch_norm(y, None, None, training=True),
    "affine batch norm of the batch": lambda y, w: F.batch_norm(y, None, None, w[0, :4], w[1, :4], training=True),
    "index_fill": lambda y, w: y.index_fill(-1, torch.tensor([2, -3, 2]), 0.5),
    "index_fill at computed indices": lambda y, w: y.index_fill(2, y[0, 0].argmax(-1), w[0, 0]),
    "index_fill of one row": lambda y, w: y.index_fill(2, torch.tensor(3), torch.tensor(0.25)),
    "hypot": lambda y, w: torch.hypot(y, y.mT),
    "ldexp": lambda y, w: torch.ldexp(y, torch.tensor(2)),
    "logit": lambda y, w: torch.logit(y.sigmoid()),
    "logit of bounded numbers": lambda y, w: torch.logit(y, eps=1e-3),
    "take_along_dim": lambda y, w: torch.take_along_dim(y, torch.arange(8).flip(0).view(1, 1, 8, 1), -2),
    "one_hot": lambda y, w: F.one_hot(y.argmax(1), 5) + w[0, 0],
    "cosine similarity": lambda y, w: F.cosine_similarity(y[0, :, :1], w[None], dim=-1),
    "cosine similarity with a row": lambda y, w: F.cosine_similarity(y, w[:1], dim=3),
    "shifted": lambda y, w: ((y * 9).int() >> 1) * 1.0 + (y.int() << torch.arange(8)),
    "rrelu": lambda y, w: F.rrelu(y, upper=0.25),
    "rrelu in place": lambda y, w: F.rrelu(y * 2, inplace=True),
    "rrelu of a written slice": lambda y, w: F.rrelu(_doubled_first_row(y), 0.1, 0.3),
    "transposed by other names": lambda y, w: y.mT + y.swapaxes(2, 3).moveaxis(1, 0)[0] * w.t() + y[0, 0].T @ w.H,
    "shaped like another": lambda y, w: y.flatten(2).softmax(-1).view_as(y) + w[:1, :1].expand_as(y),
    "reshaped like another": lambda y, w: torch.tanh(y.mT).reshape_as(y.flatten(2)).softmax(-1),
    "cumprod": lambda y, w: torch.cumprod(y, 2) + torch.cumprod(y > 0, -1),
    "round to decimals": lambda y, w: torch.round(y, decimals=1),
    "round to thousands": lambda y, w: torch.round(torch.arange(500, 50000, 1000.0) + 0 * y[0, 0, 0, 0], decimals=-3),
}


EXACT_HALVES = "round to thousands"
"""calibrate refuses it where a quotient is a product with a reciprocal, as Arm and NXP write it: 1.5 becomes less."""


class Between(nn.Module):
    def __init__(self, function: _Function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.function = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(8, 8), function
        self.matrix = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        between = self.function(self.first(x).relu() - 0.2, self.matrix)
        result: torch.Tensor = self.last(between) if between.shape[-1] == 8 else between
        return result


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_decomposed_operator_has_its_result(name: str) -> None:
    network, x = Between(FUNCTIONS[name]).eval(), torch.randn(1, 3, 8, 8)
    torch.testing.assert_close(export(network, [[1, 3, 8, 8]]).module()(x), network(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", quick_first(["cortex_m55", "ethos_u55_128", "neutron_imxrt700"], 2))
def test_what_is_shaped_like_another_tensor_has_a_range_of_its_own(target: str) -> None:
    """Quantizers share the ranges of all that a `view_as` reads: a softmax took over that of its scores."""
    network = Between(lambda y, _: 8 * y.flatten(2).softmax(-1).view_as(y).flatten(2)).eval()
    samples, backend = [(torch.randn(1, 3, 8, 8),) for _ in range(8)], create(target)

    def exported() -> torch.export.ExportedProgram:
        return export(network, [[1, 3, 8, 8]], (), backend.memory_format)

    observing, converting = (backend.quantizer(QuantizationScheme(name="int8")) for _ in range(2))
    assert observing is not None
    assert converting is not None
    state = calibrate(exported(), observing, samples, len(samples))
    quantized = quantize(exported(), converting, state)[0].module(check_guards=False)
    for sample in samples:
        assert (quantized(*sample) - network(*sample)).abs().max() < 8 / 256


def test_assertions_about_values_are_dropped() -> None:
    class Asserting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch._assert_async(x.abs().max() < 100, "too large")
            return x + 1

    names = [node.target for node in export(Asserting(), [[1, 4]]).graph.nodes if node.op == "call_function"]
    assert names == [torch.ops.aten.add.Tensor]


def test_a_pooling_with_another_divisor_keeps_it() -> None:
    network = Between(lambda y, _: F.avg_pool3d(y[None], (3, 1, 1), 1, divisor_override=2)).eval()
    x = torch.randn(1, 3, 8, 8)
    torch.testing.assert_close(export(network, [[1, 3, 8, 8]]).module()(x), network(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", quick_first(["ethos_u85_256", "cortex_m55", "neutron_imxrt700", "xnnpack_cpu"]))
@pytest.mark.parametrize("name", quick_first([name for name in FUNCTIONS if name != EXACT_HALVES]))
def test_it_is_built(name: str, target: str) -> None:
    samples = [(torch.randn(1, 3, 8, 8),) for _ in range(8)]
    verdict, detail = lowered(Between(FUNCTIONS[name]).eval(), samples, create(target))
    assert verdict == "right", detail


@pytest.mark.parametrize("affine", [True, False])
def test_a_layer_norm_in_float16_adds_squares_in_float32(affine: bool) -> None:
    """ExecuTorch's kernel was off by 84 times the largest value."""
    torch.manual_seed(0)
    norm = nn.LayerNorm(256, elementwise_affine=affine)
    network = nn.Sequential(nn.Linear(256, 256), norm, nn.Linear(256, 4)).eval()
    float16 = QuantizationScheme(name="float16")
    verdict, detail = lowered(network, [(torch.randn(1, 256),) for _ in range(8)], create("xnnpack_cpu"), float16)
    assert verdict == "right", detail


IN_FLOAT16: dict[str, _Function] = {
    "hypot of small numbers": lambda x, w: torch.hypot(x * 1e-5, w * 1e-5),
    "hypot of large numbers": lambda x, w: torch.hypot(x * 100, w * 100),
    "cosine similarity": lambda x, w: F.cosine_similarity(x[:, None] * 3, w[None] * 3, dim=-1),
    "ldexp": lambda x, w: torch.ldexp(x, torch.tensor([1, 2])[:, None]),
}


@pytest.mark.parametrize("name", IN_FLOAT16)
def test_in_float16_squares_do_not_overflow(name: str) -> None:
    """They were infinite, or zero, and ldexp returned float32."""

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows: torch.Tensor
            self.register_buffer("rows", torch.full((2, 512), 6.0, dtype=torch.float16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return IN_FLOAT16[name](x, self.rows)

    x = torch.full((2, 512), 8.0, dtype=torch.float16)
    found, wanted = export(Half(), [[2, 512]], input_dtypes=["float16"]).module()(x), Half()(x)
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted)


@pytest.mark.slow
def test_a_shift_that_rounds_stays_on_the_cpu() -> None:
    """An Ethos-U55 has no other, and convert finds that it computes something else."""

    def shifted(y: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return ((y * 9).int() >> torch.ones(8, dtype=torch.int32)) * 1.0

    samples = [(torch.randn(1, 3, 8, 8),) for _ in range(8)]
    verdict, detail = lowered(Between(shifted).eval(), samples, create("ethos_u55_128"))
    assert verdict == "right", detail
    assert "bitwise_right_shift" in detail
    assert "stays on the CPU" in detail


def test_constant_indices_are_filled_by_one_mask() -> None:
    module = export(Between(FUNCTIONS["index_fill"]).eval(), [[1, 3, 8, 8]]).module(check_guards=False)
    assert isinstance(module, torch.fx.GraphModule)
    named = [str(node.target) for node in module.graph.nodes if node.op == "call_function"]
    assert "aten.masked_fill.Scalar" in named
    assert not any("any" in each or "arange" in each for each in named)


def test_transposing_has_one_name_also_where_a_batch_varies() -> None:
    class Scores(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ x.mT + x @ x.swapaxes(1, 2)

    program = export(Scores(), [[4, 2, 3]], [DynamicDimension(dim=0, min=1, max=4)])
    found = [node.target for node in program.graph.nodes if "transpose" in str(node.target) or "T" in node.name]
    assert found == [torch.ops.aten.transpose.int] * 2
    x = torch.randn(3, 2, 3)
    torch.testing.assert_close(program.module()(x), Scores()(x))


@pytest.mark.parametrize("target", ["ethos_u55_128", "cortex_m55", "neutron_imxrt700", "xnnpack_cpu"])
@pytest.mark.parametrize(
    "bounded", [*(partial(F.hardtanh, min_val=low, max_val=high) for low, high in ((0, 1), (-1, 1))), F.relu6]
)
def test_bounds_may_be_integers(bounded: Callable[..., torch.Tensor], target: str) -> None:
    """PyTorch leaves out what the schema has, -1 and 1, but not -1.0 and 1.0, and backends read it."""

    class Bounded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.last(bounded(self.first(bounded(x))))
            return bounded(y, inplace=True)

    torch.manual_seed(0)
    samples = [(torch.randn(1, 3, 12, 12),) for _ in range(8)]
    verdict, detail = lowered(Bounded().eval(), samples, create(target))
    assert verdict == "right", detail
    assert "fails on it" not in detail
    if target != "cortex_m55":  # which has no NPU
        delegated, count = detail.partition(" operators")[0].split(" of ")
        assert delegated == count
