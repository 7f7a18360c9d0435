"""Sizes that vary: from export through quantization and stored files to one `.pte` that takes them all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
import torch
from executorch.exir import EdgeProgramManager
from torch import nn

from lowerdeck import backends
from lowerdeck.artifacts import paths
from lowerdeck.artifacts.conversion import converter_folder, write_converted
from lowerdeck.artifacts.edge_programs import read_edge_program, write_edge_program
from lowerdeck.artifacts.host_programs import open_converted_program
from lowerdeck.artifacts.plans import read_plan, write_plan
from lowerdeck.artifacts.programs import read_program, write_program
from lowerdeck.cli.run_program import describe, run_program
from lowerdeck.contracts.backends import Backend, DynamicDimension
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.plan import DelegationPlan
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.contracts.samples import Sample, Split
from lowerdeck.evaluation.layerwise_sqnr import compare_layers
from lowerdeck.graph.dynamic_shapes import dynamic_shapes_of
from lowerdeck.models.networks.resnet8 import ResNet8
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.convert import Converted, convert
from lowerdeck.steps.export import export
from lowerdeck.steps.partition import partition
from lowerdeck.steps.quantize import quantize
from tests.conftest import small_network
from tests.marks import quick_first
from tests.programs import open_natively

HEIGHT_AND_WIDTH = (DynamicDimension(dim=2, min=16, max=64), DynamicDimension(dim=3, min=16, max=64))
SQUARE = tuple(DynamicDimension(dim=dim, min=16, max=64, multiple_of=4, name="side") for dim in (2, 3))
BATCH = (DynamicDimension(dim=0, min=1, max=8),)


@dataclass(frozen=True)
class Lowered:
    """A program in `folder`, and what it was made of."""

    folder: Path
    plan: DelegationPlan
    stored: Converted
    """Made as stages do, with files between the steps."""
    direct: bytes
    """The `.pte` of an edge program that was never stored."""

    def run(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What the `.pte` answers, and what the program before lowering does."""
        with chdir(self.folder), torch.no_grad():
            (answer,) = open_converted_program("reference")(inputs)
            return answer, read_program(paths.QUANTIZED).module(check_guards=False)(inputs)


def xnnpack() -> Backend:
    return backends.create("xnnpack", device={}, options={})


@pytest.fixture(scope="module")
def lower(
    tmp_path_factory: pytest.TempPathFactory, samples: Sequence[tuple[torch.Tensor, ...]]
) -> Callable[[str, Sequence[DynamicDimension]], Lowered]:
    """(scheme, dimensions) -> the small network, made at the first call."""
    made: dict[tuple[str, Sequence[DynamicDimension]], Lowered] = {}

    def get(scheme: str, dimensions: Sequence[DynamicDimension]) -> Lowered:
        if (scheme, dimensions) not in made:
            made[scheme, dimensions] = _lower(scheme, dimensions, samples, tmp_path_factory.mktemp(scheme))
        return made[scheme, dimensions]

    return get


def _lower(
    scheme: str, dimensions: Sequence[DynamicDimension], samples: Sequence[tuple[torch.Tensor, ...]], folder: Path
) -> Lowered:
    backend, wanted = xnnpack(), QuantizationScheme(name=scheme)
    with chdir(folder):
        write_program(paths.EXPORTED, export(small_network(), [[1, 3, 32, 32]], dimensions))
        program = read_program(paths.EXPORTED)
        if wanted.is_quantized:
            observing, converting = backend.quantizer(wanted), backend.quantizer(wanted)
            assert observing is not None
            assert converting is not None
            state = calibrate(program, observing, samples, len(samples))
            program, _ = quantize(read_program(paths.EXPORTED), converting, state)
        write_program(paths.QUANTIZED, program)
        partitioned = partition(read_program(paths.QUANTIZED), backend)
        write_edge_program(partitioned.program, partitioned.edge_config)
        write_plan(partitioned.plan)
        with converter_folder() as workdir:
            stored = convert(read_edge_program(), read_plan(), backend, workdir)
        write_converted(stored, backend.converter())
    manager = EdgeProgramManager({"forward": partitioned.program}, None, partitioned.edge_config)
    direct = convert(manager, partitioned.plan, backend, folder).program
    return Lowered(folder, partitioned.plan, stored, direct)


Lower = Callable[[str, Sequence[DynamicDimension]], Lowered]
ALL = [("int8", HEIGHT_AND_WIDTH), ("int8", BATCH), ("float32", SQUARE)]
IDS = ["int8, height and width", "int8, batch", "float32, squares in steps of 4"]


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "dimensions"), quick_first(ALL), ids=IDS)
def test_stored_programs_keep_what_varies(lower: Lower, scheme: str, dimensions: Sequence[DynamicDimension]) -> None:
    build = lower(scheme, dimensions)
    with chdir(build.folder):
        for path in (paths.EXPORTED, paths.QUANTIZED):
            (dynamic,) = dynamic_shapes_of(read_program(path)) or ()
            assert sorted(dynamic) == [dimension.dim for dimension in dimensions]
            for dimension in dimensions:
                found, step = dynamic[dimension.dim], dimension.multiple_of
                symbol = found if step == 1 else found.root
                assert (symbol.min * step, symbol.max * step) == (dimension.min, dimension.max)
            assert len({str(found) for found in dynamic.values()}) == len({d.name or d.dim for d in dimensions})
    assert build.stored.program == build.direct


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "dimensions", "sizes"),
    quick_first(
        [
            (*ALL[0], [(1, 3, 32, 32), (1, 3, 16, 64), (1, 3, 17, 33), (1, 3, 64, 64)]),
            (*ALL[1], [(1, 3, 32, 32), (8, 3, 32, 32), (3, 3, 32, 32)]),
            (*ALL[2], [(1, 3, 32, 32), (1, 3, 64, 64), (1, 3, 16, 16)]),
        ]
    ),
    ids=IDS,
)
def test_one_file_takes_every_size(
    lower: Lower, scheme: str, dimensions: Sequence[DynamicDimension], sizes: Sequence[tuple[int, ...]]
) -> None:
    build, generator = lower(scheme, dimensions), torch.Generator().manual_seed(4)
    for size in sizes:
        inputs = torch.randn(*size, generator=generator)
        answer, expected = build.run(inputs)
        assert answer.shape == (size[0], 10)
        torch.testing.assert_close(answer, expected, rtol=0, atol=1e-6)
        error = (answer - small_network()(inputs)).abs().max().item()
        # Outputs reach 0.5, and the ranges were found on 32x32: means of smaller images leave them now and then.
        assert error < (0.06 if scheme == "int8" else 1e-5)


@pytest.mark.slow
def test_layers_are_compared_although_each_program_has_symbols_of_its_own(
    lower: Lower, samples: Sequence[tuple[torch.Tensor, ...]]
) -> None:
    with chdir(lower(*ALL[0]).folder):
        exported, quantized = map(read_program, (paths.EXPORTED, paths.QUANTIZED))
    split = [Sample(inputs=inputs, label=None, digest="") for inputs in samples]
    layers = compare_layers(exported, quantized, cast(Split, split), range(len(split)))
    assert {layer.operator for layer in layers} >= {"input", "aten.relu.default", "aten.linear.default"}
    assert all(layer.sqnr_db > 20 for layer in layers)


@pytest.mark.parametrize(("scheme", "dimensions"), quick_first(ALL), ids=IDS)
def test_all_is_delegated_whatever_varies(lower: Lower, scheme: str, dimensions: Sequence[DynamicDimension]) -> None:
    """The view of `flatten(1)`, too, although torch.export gives it the batch as an argument."""
    plan = lower(scheme, dimensions).plan
    assert len(plan.partitions) == 1
    assert plan.delegated_compute_nodes == plan.compute_nodes


class Pooled(nn.Module):
    """Windows that leave one value of each channel, and a view of two sizes that vary."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.pool, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.AvgPool2d(8), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.convolution(x)
        image = x.reshape(4, x.shape[2], x.shape[3]).relu()
        return self.head(self.pool(x).flatten(1)), image


@pytest.mark.slow
def test_views_that_stay_on_the_cpu_say_why_and_compute(tmp_path: Path) -> None:
    dimensions = [DynamicDimension(dim=dim, min=8, max=12, multiple_of=4, name="side") for dim in (2, 3)]
    network = Pooled().eval()
    backend = backends.create("xnnpack", device={}, options={"excluded_configs": ["ViewCopyConfig"]})
    program = export(network, [[1, 3, 8, 8]], dimensions)
    reasons = []
    for lowering in (xnnpack(), backend):
        partitioned = partition(program, lowering)
        views = [node for node in partitioned.plan.nodes if node.operator == "aten.view_copy.default"]
        reasons.append({str(node.reason) for node in views if node.partition is None})
        manager = EdgeProgramManager({"forward": partitioned.program}, None, partitioned.edge_config)
        opened = open_natively(convert(manager, partitioned.plan, lowering, tmp_path))
        for size in (8, 12):
            inputs = torch.randn(1, 3, size, size)
            for answer, expected in zip(opened(inputs), network(inputs), strict=True):
                torch.testing.assert_close(answer, expected, rtol=0, atol=1e-5)
        # To find out a size is no computation that a delegate could take.
        sizes = [node.compute for node in partitioned.plan.nodes if node.operator == "aten.sym_size.int"]
        assert sizes
        assert not any(sizes)
    assert reasons == [
        {"dynamic_shape: invalid dtype: it takes a size that varies"},
        {"excluded: excluded by target.options.excluded_configs: ViewCopyConfig"},
    ]


def test_manifest_and_run_tell_the_largest_size(lower: Lower, capsys: pytest.CaptureFixture[str]) -> None:
    build = lower(*ALL[0])
    (tensor,) = build.stored.inputs
    assert (tensor.shape, tensor.is_dynamic) == ((1, 3, 64, 64), True)
    assert not build.stored.outputs[0].is_dynamic
    path = build.folder / paths.PROGRAM
    assert "  input 0: float32 up to [1, 3, 64, 64]" in describe(path, run_program(path))
    with pytest.raises(LowerdeckError, match=r"is float32 up to \[1, 3, 64, 64\]; got float32 \[1, 3, 65, 64\]"):
        build.run(torch.zeros(1, 3, 65, 64))


class Sum(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


class Flattened(nn.Module):
    """A linear layer behind a flattened image."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3 * 16 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(x.flatten(1))
        return scores


class DownAndUp(nn.Module):
    """A residual connection around a change of scale, which only even sizes survive."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.ConvTranspose2d(4, 3, 2, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = x + self.up(self.down(x))
        return scores


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[2] <= 20 else x


IMAGE = [[1, 3, 16, 16]]


@pytest.mark.parametrize(
    ("network", "shapes", "dimensions", "expected"),
    [
        (
            Flattened(),
            IMAGE,
            [DynamicDimension(dim=2, min=8, max=32)],
            "  model.dynamic_shapes.0 (dimension 2 of input 0): the model works only with 16; leave it out",
        ),
        (
            DownAndUp(),
            IMAGE,
            [DynamicDimension(dim=0, min=1, max=4), DynamicDimension(dim=3, min=8, max=32)],
            "it suggests min: 8, max: 32, multiple_of: 2",
        ),
        (Branch(), IMAGE, [DynamicDimension(dim=2, min=8, max=32, name="h")], "it suggests min: 8, max: 20"),
        (
            Sum(),
            [[1, 4], [1, 4]],
            [DynamicDimension(dim=1, min=2, max=8), DynamicDimension(input=1, dim=1, min=2, max=8)],
            "model.dynamic_shapes.1 (dimension 1 of input 1): must equal model.dynamic_shapes.0; give both the same",
        ),
    ],
    ids=["fixed", "even", "branch", "equal"],
)
def test_a_model_that_does_not_take_every_size_says_what_to_change(
    network: nn.Module, shapes: Sequence[Sequence[int]], dimensions: Sequence[DynamicDimension], expected: str
) -> None:
    with pytest.raises(LowerdeckError) as caught:
        export(network.eval(), shapes, dimensions)
    message = str(caught.value)
    assert message.startswith(f"{type(network).__name__} does not take all sizes of model.dynamic_shapes:\n")
    assert expected in message
    assert "TORCH_LOGS" not in message


def side(**range_of_sizes: int) -> list[DynamicDimension]:
    """Height and width of ResNet-8's square images."""
    return [DynamicDimension(dim=dim, name="side", **range_of_sizes) for dim in (2, 3)]


def test_sizes_that_export_lets_pass_are_tried() -> None:
    """ResNet-8 ends with a window of 8x8 after two halvings, so that it takes 32 up to 63 only."""
    network = ResNet8(num_classes=10).eval()
    for sizes, tried in (({"min": 16, "max": 56}, 16), ({"min": 32, "max": 64}, 64)):
        with pytest.raises(LowerdeckError, match=rf"inputs of shape \[1, 3, {tried}, {tried}\]: Guard failed"):
            export(network, [[1, 3, 32, 32]], side(**sizes, multiple_of=8))
    export(network, [[1, 3, 32, 32]], side(min=32, max=56, multiple_of=8))


def test_what_torch_cannot_reason_about_is_refused_with_a_way_out() -> None:
    with pytest.raises(
        LowerdeckError, match=r"model\.dynamic_shapes\): .*\n[\s\S]*set multiple_of to the model's divisor"
    ):
        export(ResNet8(num_classes=10).eval(), [[1, 3, 32, 32]], side(min=16, max=64))


def test_what_export_suggests_is_accepted() -> None:
    export(DownAndUp().eval(), IMAGE, [DynamicDimension(dim=3, min=8, max=32, multiple_of=2)])
    shared = [DynamicDimension(input=index, dim=1, min=2, max=8, name="length") for index in (0, 1)]
    program = export(Sum(), [[1, 4], [1, 4]], shared)
    first, second = dynamic_shapes_of(program) or ()
    assert first[1] is second[1]


@pytest.mark.parametrize("num_inputs", [1, 3])
def test_inputs_that_forward_takes_as_one_tuple_vary(num_inputs: int) -> None:
    """torch.export has one entry for all of them, and found none of a tuple."""

    class Last(torch.nn.Module):
        def forward(self, first: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
            return first + others[-1] if others else first * 2

    class All(torch.nn.Module):
        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            return inputs[0] + inputs[-1]

    dimensions = [DynamicDimension(input=index, dim=1, min=2, max=16, name="n") for index in range(num_inputs)]
    for model in (Last(), All()):
        program = export(model, [[1, 8]] * num_inputs, dimensions)
        given = [torch.randn(1, 5) for _ in range(num_inputs)]
        torch.testing.assert_close(program.module()(*given), model(*given))


def test_fixed_shapes_stay_fixed() -> None:
    assert dynamic_shapes_of(export(Sum(), [[1, 4], [1, 4]])) is None
