"""What of Ethos-U's device decides how a model is quantized, and what of it each NPU executes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import chdir
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lowerdeck import backends
from lowerdeck.artifacts.conversion import converter_folder, write_converted
from lowerdeck.artifacts.edge_programs import read_edge_program, write_edge_program
from lowerdeck.artifacts.host_programs import open_converted_program
from lowerdeck.backends.ethos_u import options as ethos_u
from lowerdeck.backends.ethos_u.backend import EthosU
from lowerdeck.compat.arm import WIDEN_FOR_SUMS
from lowerdeck.contracts.backends import Backend, BuildContext, Flavor
from lowerdeck.contracts.errors import ConversionError
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.evaluation.quantization_error import sqnr_db
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.convert import Converted, convert
from lowerdeck.steps.export import export
from lowerdeck.steps.partition import partition
from lowerdeck.steps.quantize import quantize
from tests.backends.ethos_u.lowering import U55, U85
from tests.compat.replacements import without
from tests.conftest import Lowered
from tests.marks import quick_first
from tests.runtime import lowering

INT16X8 = QuantizationScheme(name="int16x8")
INT8 = QuantizationScheme(name="int8")


def backend_of(build: Lowered, device: dict[str, Any], **options: Any) -> Backend:
    target = build.target
    return backends.create(
        "ethos_u",
        device=target["device"] | device,
        options=target["options"] | options,
        flavor=Flavor(name="vela", converter="vela", options={}, timeout_s=60),
    )


def quantized(
    program: Callable[[], torch.export.ExportedProgram],
    backend: Backend,
    scheme: QuantizationScheme,
    samples: Sequence[tuple[torch.Tensor, ...]],
) -> torch.export.ExportedProgram:
    observing, converting = backend.quantizer(scheme), backend.quantizer(scheme)
    assert observing is not None
    assert converting is not None
    state = calibrate(program(), observing, samples, len(samples))
    return quantize(program(), converting, state)[0]


def lower(program: torch.export.ExportedProgram, backend: Backend, folder: Path) -> Converted:
    planned = partition(program, backend)
    folder.mkdir()
    with chdir(folder):
        write_edge_program(planned.program, planned.edge_config)
        with converter_folder() as workdir:
            converted = convert(read_edge_program(), planned.plan, backend, workdir)
        write_converted(converted, backend.converter())
    return converted


FAMILIES = {
    "ethos-u55-64": (U55, {"system_config": "Ethos_U55_High_End_Embedded", "memory_mode": "Shared_Sram"}),
    "ethos-u65-256": (U55, {"system_config": "Ethos_U65_High_End", "memory_mode": "Dedicated_Sram_384KB"}),
    "ethos-u85-512": (U85, {"system_config": "Ethos_U85_SYS_DRAM_Mid", "memory_mode": "Dedicated_Sram_384KB"}),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "accelerator", [pytest.param(name, marks=() if "u55" in name else pytest.mark.slow) for name in FAMILIES]
)
def test_every_family_has_16_bit_activations(
    lowered: Callable[[str], Lowered], tmp_path: Path, accelerator: str
) -> None:
    name, options = FAMILIES[accelerator]
    build = lowered(name)
    backend = backend_of(build, {"accelerator": accelerator}, **options, quantized_inputs=True, quantized_outputs=True)
    program = quantized(build.exported, backend, INT16X8, build.samples[:2])
    converted = lower(program, backend, tmp_path / "build")
    assert converted.operators == ()
    assert [tensor.dtype for tensor in (*converted.inputs, *converted.outputs)] == ["int16", "int16"]
    assert converted.estimates["cpu_operators"] == 0
    with chdir(tmp_path / "build"):
        (found,) = open_converted_program("reference")(*build.samples[0])
    (expected,) = (program.module()(*build.samples[0]),)
    assert (found - expected).abs().max() <= 2 * (converted.output_scales[0] or 0)


class Twice(nn.Module):
    """A convolution whose result two operators use: float32 [1 x 8 x 8 x 8].

    Arm's passes give it two results, of 16 and 32 bits, and Vela cannot compile both for an Ethos-U55.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return x + torch.relu(x)


def test_what_a_u55_cannot_do_with_16_bits_is_refused_with_a_way_out(
    lowered: Callable[[str], Lowered], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    network, shape = Twice().eval(), [1, 8, 8, 8]
    samples = [(torch.randn(shape),)]
    backend = backend_of(lowered(U55), {})
    program = quantized(lambda: export(network, [shape]), backend, INT16X8, samples)
    way_out = r"(?s)could not run on NPU.*keep them on the CPU with target\.options\."
    with without(WIDEN_FOR_SUMS), pytest.raises(ConversionError, match=way_out):
        lower(program, backend, tmp_path / "refused")
    assert not any(name.startswith("aten::") for name in lower(program, backend, tmp_path / "whole").operators)
    split = backend_of(lowered(U55), {}, modules_not_to_delegate=["first"])
    assert "aten::convolution.out" in lower(program, split, tmp_path / "split").operators


@pytest.mark.parametrize(("target", "dtype"), quick_first([(U55, "uint8"), (U85, "int16")]))
def test_inputs_and_outputs_may_have_integers_of_their_own(
    lowered: Callable[[str], Lowered], tmp_path: Path, target: str, dtype: str
) -> None:
    build = lowered(target)
    backend = backend_of(build, {"io_quantization": dtype}, quantized_inputs=True, quantized_outputs=True)
    program = quantized(build.exported, backend, INT8, build.samples[:2])
    converted = lower(program, backend, tmp_path / "build")
    assert [tensor.dtype for tensor in (*converted.inputs, *converted.outputs)] == [dtype, dtype]
    assert converted.operators == ()
    with chdir(tmp_path / "build"):
        (found,) = open_converted_program("reference")(*build.samples[0])
    assert torch.equal(found, program.module()(*build.samples[0]))


def test_integers_of_the_scheme_itself_are_refused_at_the_io_boundary() -> None:
    device = ethos_u.Device(accelerator="ethos-u55-128", io_quantization="int16")
    options = ethos_u.Options(system_config="Ethos_U55_High_End_Embedded", memory_mode="Shared_Sram")
    for scheme, keys in ((INT16X8, ["target.device.io_quantization"]), (INT8, [])):
        build = BuildContext(scheme=scheme, input_shapes=[[1, 3, 32, 32]])
        assert [key for key, _ in EthosU(device=device, options=options).check_build(build)] == keys


class Masked(nn.Module):
    """Attention scores with a mask, which it returns, so that infinities stay: float32 [1 x 4 x 8]."""

    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(8, 8)
        self.register_buffer("mask", torch.tril(torch.ones(4, 4)) == 0)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.query(x)
        scores = (x @ x.transpose(1, 2)).masked_fill(self.mask, float("-inf"))
        return scores, torch.softmax(scores, -1)


@pytest.mark.slow
def test_the_pass_pipeline_decides_what_is_quantized_and_delegated(lowered: Callable[[str], Lowered]) -> None:
    torch.manual_seed(0)
    network, shape = Masked().eval(), [1, 4, 8]
    samples = [(torch.randn(shape),)]

    def left_to_the_cpu(limit: float = 256.0, **chosen: Any) -> tuple[set[str], set[float]]:
        infinities = {"quantize_inf": {"neg_inf": -limit, "pos_inf": limit}}
        backend = backend_of(lowered(U85), {"pass_pipeline": chosen | infinities})
        program = quantized(lambda: export(network, [shape]), backend, INT8, samples)
        scales = {node.args[1] for node in program.graph.nodes if "quantize_per_tensor" in node.name}
        nodes = partition(program, backend).plan.nodes
        return {node.operator for node in nodes if node.compute and node.partition is None}, scales

    masked, scales = left_to_the_cpu()
    assert masked == set()
    assert left_to_the_cpu(softmax="MASKED") == (masked, scales)
    assert "aten.where.self" in left_to_the_cpu(softmax="STABLE")[0]
    assert max(left_to_the_cpu(limit=20.0)[1]) < 0.5 * max(scales)


@pytest.mark.parametrize("target", quick_first([U55, U85]))
@pytest.mark.parametrize("scheme", [INT8, INT16X8], ids=lambda scheme: scheme.name)
def test_infinities_of_a_mask_stay(target: str, scheme: QuantizationScheme, lowered: Callable[[str], Lowered]) -> None:
    """They became -256, which took all steps of the scores, and won over what is less; later they were refused."""
    torch.manual_seed(0)
    network, x = Masked().eval(), torch.randn(1, 4, 8)
    program = quantized(lambda: export(network, [[1, 4, 8]]), lowered(target).backend(), scheme, [(x,)])
    for found, wanted in zip(program.module(check_guards=False)(x), network(x), strict=True):
        assert torch.equal(found.isfinite(), wanted.isfinite())
        kept = wanted.isfinite()
        assert (found - wanted)[kept].abs().max() < 0.03 * wanted[kept].abs().max()


def test_choices_that_would_be_lost_are_refused() -> None:
    options = ethos_u.Options(system_config="Ethos_U55_High_End_Embedded", memory_mode="Shared_Sram")
    device = ethos_u.Device(accelerator="ethos-u55-128", pass_pipeline=ethos_u.PassPipeline(softmax="MASKED"))
    ((key, message),) = EthosU(device=device, options=options).check()
    assert key == "device.pass_pipeline.softmax"
    assert "has STABLE only" in message
    device = dataclasses.replace(device, pass_pipeline=ethos_u.PassPipeline())
    assert not list(EthosU(device=device, options=options).check())


class Sampled(nn.Module):
    """A convolution's result, sampled at learned offsets: float32 [1 x 3 x 8 x 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.offsets = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 2, 3, padding=1)
        self.grid = nn.Buffer(nn.functional.affine_grid(torch.eye(2, 3)[None], [1, 4, 8, 8], False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grid = self.grid + 0.2 * torch.tanh(self.offsets(x)).permute(0, 2, 3, 1)
        return nn.functional.grid_sample(self.image(x), grid, align_corners=False)


def test_sampled_images_keep_their_range(lowered: Callable[[str], Lowered]) -> None:
    """Arm's quantizer gives them -1 ... 1, the range of a texture."""
    torch.manual_seed(0)
    network, samples = Sampled().eval(), [(5 * torch.randn(1, 3, 8, 8),) for _ in range(8)]
    program = quantized(lambda: export(network, [[1, 3, 8, 8]]), lowered(U55).backend(), INT8, samples)
    expected = network(*samples[0])
    error = program.module(check_guards=False)(*samples[0]) - expected
    assert error.abs().max() < 0.1 * expected.abs().max()


class Positions(nn.Module):
    """A layer, and rows and columns of flat indices: float32 [1 x 4] and int64 [1 x 6]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, ...]:
        signed = index - 100
        rounded = torch.div(signed, 7, rounding_mode="trunc")
        return self.layer(x), index // 10, index % (index + 3), signed // 7, rounded


def test_integers_are_divided_as_integers(lowered: Callable[[str], Lowered]) -> None:
    """On an Ethos-U55, Arm's quantizer divides them as floats, of which 8 bits are left."""
    torch.manual_seed(0)
    network = Positions().eval()
    samples = [(torch.randn(1, 4), torch.randint(0, 200, (1, 6))) for _ in range(8)]
    exported = partial(export, network, [[1, 4], [1, 6]], input_dtypes=["float32", "int64"])
    program = quantized(exported, lowered(U55).backend(), INT8, samples).module(check_guards=False)
    for sample in samples:
        assert all(map(torch.equal, program(*sample)[1:], network(*sample)[1:]))


Chosen = tuple[torch.Tensor, ...]


def kept(mask: torch.Tensor, *tensors: torch.Tensor) -> Chosen:
    return tuple(torch.where(mask, tensor, torch.zeros_like(tensor)) for tensor in tensors)


def of_highest(boxes: torch.Tensor, scores: torch.Tensor) -> Chosen:
    """As in CenterNet and in YOLOv10 without NMS."""
    boxes, scores = boxes.transpose(1, 2), scores.transpose(1, 2)
    rows = scores.amax(-1).topk(4)[1].unsqueeze(-1)
    return boxes.gather(1, rows.repeat(1, 1, 4)), scores.gather(1, rows.repeat(1, 1, 2))


CHOSEN: dict[str, Callable[[torch.Tensor, torch.Tensor], Chosen]] = {
    "at the highest scores": of_highest,
    "by a comparison": lambda boxes, scores: kept(scores[:, :1] > 0.5, boxes, scores),
    "boxes by their score": lambda boxes, scores: (*kept(scores[:, :1] > 0.5, boxes), scores),
    "where scores are highest": lambda boxes, scores: kept(
        nn.functional.max_pool1d(scores[:, :1], 3, 1, 1) == scores[:, :1], boxes, scores
    ),
}


class Detector(nn.Module):
    """Boxes in pixels and scores, and what chooses among them: float32 [1 x 3 x 8 x 8]."""

    def __init__(self, choose: Callable[[torch.Tensor, torch.Tensor], Chosen]) -> None:
        super().__init__()
        self.image, self.boxes, self.scores = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 4, 1), nn.Conv2d(8, 2, 1)
        self.choose = choose

    def forward(self, x: torch.Tensor) -> Chosen:
        x = torch.relu(self.image(x))
        return self.choose(150 * self.boxes(x).flatten(2) + 320, self.scores(x).flatten(2).sigmoid())


def worst_sqnr(
    network: Callable[..., Chosen], execute: Callable[..., Any], samples: Sequence[tuple[torch.Tensor, ...]]
) -> float:
    """The least among the results, in dB."""
    with torch.no_grad():
        pairs = [zip(network(*sample), execute(*sample), strict=True) for sample in samples]
    powers = [[(float(a.square().sum()), float((a - b).square().sum())) for a, b in pair] for pair in pairs]
    return min(sqnr_db(*map(sum, zip(*of_one, strict=True))) for of_one in zip(*powers, strict=True))


@pytest.mark.parametrize("target", ["cortex_m", "ethos_u"])
@pytest.mark.parametrize("choice", quick_first(CHOSEN))
def test_what_is_chosen_together_has_ranges_of_its_own(choice: str, target: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network, samples = Detector(CHOSEN[choice]).eval(), [(torch.randn(1, 3, 8, 8),) for _ in range(8)]
    build = lowering.lower(network, samples, target, tmp_path / "build")
    # With the steps of boxes, scores have 0 dB. Where two are nearly equal, another one may be chosen.
    assert worst_sqnr(network, build.quantized, samples) > 5
    assert worst_sqnr(build.quantized, build.open(), samples) > 40
