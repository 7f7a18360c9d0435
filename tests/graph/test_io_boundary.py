"""Integers in place of floats at a program's I/O boundary, inputs and outputs in the manifest, and execution."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.conversion import converter_folder, write_converted
from lowerdeck.artifacts.edge_programs import read_edge_program, write_edge_program
from lowerdeck.artifacts.host_programs import open_converted_program
from lowerdeck.cli.main import main
from lowerdeck.cli.run_program import run_program
from lowerdeck.contracts.backends import Backend
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.lowering import Lowering, ProgramTensor
from lowerdeck.contracts.plan import DelegationPlan
from lowerdeck.runtime.floats import FloatProgram, from_program, to_program
from lowerdeck.runtime.loading import open_program
from lowerdeck.runtime.torch_program import torch_program
from lowerdeck.steps.convert import Converted, convert
from lowerdeck.steps.partition import partition
from tests.conftest import Lowered, backend_for, small_network
from tests.project import REPOSITORY

IntegerBuild = tuple[Path, DelegationPlan, Converted]
Integer = Callable[[str], IntegerBuild]
TARGETS = ("ethos_u55_128", "neutron_imxrt700", "xnnpack_cpu")


@dataclasses.dataclass(frozen=True)
class Flagged:
    """A backend whose lowering asks for integers."""

    backend: Backend
    inputs: bool
    outputs: bool

    def lowering(self, program: torch.export.ExportedProgram) -> Lowering:
        lowering = self.backend.lowering(program)
        return dataclasses.replace(lowering, quantized_inputs=self.inputs, quantized_outputs=self.outputs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)


def build(program: torch.export.ExportedProgram, backend: Any, folder: Path) -> tuple[DelegationPlan, Converted]:
    """Partition and convert in `folder`, through files as between stages; `backend` may be Flagged."""
    with chdir(folder):
        partitioned = partition(program, backend)
        write_edge_program(partitioned.program, partitioned.edge_config)
        with converter_folder() as workdir:
            converted = convert(read_edge_program(), partitioned.plan, backend, workdir)
        write_converted(converted, backend.converter())
    return partitioned.plan, converted


def opened(folder: Path) -> FloatProgram:
    """The program of a build, to be fed with floats."""
    with chdir(folder):
        return open_converted_program("reference")


def answers(folder: Path, samples: Sequence[tuple[torch.Tensor, ...]]) -> torch.Tensor:
    program = opened(folder)
    return torch.cat([program(*sample)[0] for sample in samples])


@pytest.fixture(scope="module")
def integer(lowered: Callable[[str], Lowered], tmp_path_factory: pytest.TempPathFactory) -> Integer:
    """(target) -> folder, plan and conversion of the small network that takes and gives integers."""
    made: dict[str, IntegerBuild] = {}

    def get(target: str) -> IntegerBuild:
        if target not in made:
            folder = tmp_path_factory.mktemp(f"integer_{target}")
            float_build = lowered(target)
            backend = Flagged(float_build.backend(), inputs=True, outputs=True)
            made[target] = folder, *build(float_build.quantized(), backend, folder)
        return made[target]

    return get


@pytest.mark.parametrize("target", TARGETS)
def test_programs_take_and_return_floats_by_default(lowered: Callable[[str], Lowered], target: str) -> None:
    converted = lowered(target).converted
    (taken,), (given,) = converted.inputs, converted.outputs
    assert taken == ProgramTensor(name="x", dtype="float32", shape=(1, 3, 32, 32), dim_order=(0, 1, 2, 3))
    assert (given.dtype, given.shape, given.dim_order, given.scale) == ("float32", (1, 10), (0, 1), None)
    assert given.name in ("aten_linear_default", "aten_addmm_default")


@pytest.mark.parametrize("target", TARGETS)
class TestIntegers:
    def test_the_manifest_says_what_the_integers_mean(self, integer: Integer, target: str) -> None:
        folder, _, converted = integer(target)
        stored = json.loads((folder / paths.MANIFEST).read_text())
        (taken,), (given,) = stored["inputs"], stored["outputs"]
        assert (taken["name"], taken["dtype"], taken["shape"]) == ("x", "int8", [1, 3, 32, 32])
        assert (given["dtype"], given["shape"]) == ("int8", [1, 10])
        # What the program itself answers through ExecuTorch's constant methods.
        from lowerdeck.formats.pte import read_pte

        constants = {method.name: method.values[method.outputs[0]] for method in read_pte(converted.program)[1:]}
        for name, tensor in (("input0", taken), ("output0", given)):
            assert constants[f"{name}_scale"] == tensor["scale"]
            assert constants[f"{name}_zp"] == tensor["zero_point"]
            assert (constants[f"{name}_quant_min"], constants[f"{name}_quant_max"]) == (-128, 127)

    def test_no_operator_quantizes_any_more(
        self, lowered: Callable[[str], Lowered], integer: Integer, target: str
    ) -> None:
        _, _, converted = integer(target)
        assert not any("quantize" in operator for operator in converted.operators)
        if target != "xnnpack_cpu":  # which takes these operators into its partition
            assert any("quantize" in operator for operator in lowered(target).converted.operators)

    def test_the_plan_keeps_the_io_boundary_on_the_cpu_and_all_else_where_it_was(
        self, lowered: Callable[[str], Lowered], integer: Integer, target: str
    ) -> None:
        _, plan, _ = integer(target)
        before = lowered(target).plan
        assert plan.delegated_compute_nodes == before.delegated_compute_nodes == plan.compute_nodes
        quantizers = [node for node in plan.nodes if "dequantize" not in node.operator and "quantize" in node.operator]
        assert [node.partition for node in quantizers].count(None) == 1
        assert plan.nodes[-1].operator.startswith("quantized_decomposed.dequantize")
        assert plan.nodes[-1].partition is None

    def test_floats_give_the_same_answers_through_it(
        self, lowered: Callable[[str], Lowered], integer: Integer, target: str
    ) -> None:
        float_build = lowered(target)
        expected = answers(float_build.folder, float_build.samples)
        assert torch.equal(answers(integer(target)[0], float_build.samples), expected)
        assert len(set(expected.flatten().tolist())) > 10

    def test_it_executes_on_integers(self, lowered: Callable[[str], Lowered], integer: Integer, target: str) -> None:
        folder, _, converted = integer(target)
        program = opened(folder)
        (sample,) = lowered(target).samples[0]
        (raw,) = program.program(to_program(sample, converted.inputs[0]))
        assert raw.dtype == torch.int8
        assert torch.equal(from_program(raw, converted.outputs[0]), program(sample)[0])
        with pytest.raises(LowerdeckError, match="is int8"):
            program.program(sample)


@pytest.mark.parametrize(("inputs", "outputs"), [(True, False), (False, True)])
def test_either_side_alone(lowered: Callable[[str], Lowered], tmp_path: Path, inputs: bool, outputs: bool) -> None:
    base = lowered("xnnpack_cpu")
    _, converted = build(base.quantized(), Flagged(base.backend(), inputs, outputs), tmp_path)
    assert converted.inputs[0].dtype == ("int8" if inputs else "float32")
    assert converted.outputs[0].dtype == ("int8" if outputs else "float32")
    assert torch.equal(answers(tmp_path, base.samples), answers(base.folder, base.samples))


@pytest.mark.parametrize(
    ("side", "message"), [("inputs", "input 'x' cannot be an integer"), ("outputs", "output 0 cannot be an integer")]
)
def test_what_is_not_quantized_cannot_be_an_integer(
    lowered: Callable[[str], Lowered], tmp_path: Path, side: str, message: str
) -> None:
    base = lowered("xnnpack_cpu")
    backend = Flagged(base.backend(), side == "inputs", side == "outputs")
    with pytest.raises(LowerdeckError, match=message) as caught:
        build(base.exported(), backend, tmp_path)
    assert f"set target.options.quantized_{side} to false" in str(caught.value)


@pytest.mark.slow
def test_an_image_is_quantized_by_the_manifest(integer: Integer, tmp_path: Path) -> None:
    folder, _, converted = integer("xnnpack_cpu")
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "x.png")
    run_program(folder / paths.PROGRAM, [tmp_path / "x.png"], tmp_path / "out", mean=[0.5], std=[0.25])
    floats = (torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 255 - 0.5) / 0.25
    (expected,) = open_program(folder / paths.PROGRAM)(to_program(floats, converted.inputs[0]).contiguous())
    assert np.array_equal(np.load(tmp_path / "out" / "x.png" / "output_0.npy"), expected.numpy())
    with pytest.raises(LowerdeckError, match="needs the manifest"):
        run_program(folder / paths.PROGRAM, [tmp_path / "x.png"], beside=False)
    (tmp_path / "conf").symlink_to(REPOSITORY / "conf")
    with chdir(tmp_path):
        assert main(["measure", str(folder / paths.PROGRAM), "--inputs", "x.png", "--on", "host_native"]) == 0


def half_program(channels_last: bool) -> Any:
    sample = torch.zeros(1, 3, 32, 32, dtype=torch.float16)
    if channels_last:
        sample = sample.to(memory_format=torch.channels_last)
    with torch.no_grad():
        return torch.export.export(small_network().half(), (sample,))


@pytest.mark.parametrize("channels_last", [False, True])
def test_float16_programs_in_any_layout_are_fed_with_floats(
    lowered: Callable[[str], Lowered], tmp_path: Path, channels_last: bool
) -> None:
    base = lowered("xnnpack_cpu")
    program = half_program(channels_last)
    expected = torch_program(program)  # takes float32 as well
    _, converted = build(program, backend_for(base.target), tmp_path)
    assert (converted.inputs[0].dtype, converted.outputs[0].dtype) == ("float16", "float16")
    assert converted.inputs[0].dim_order == ((0, 2, 3, 1) if channels_last else (0, 1, 2, 3))
    answered = answers(tmp_path, base.samples)
    assert answered.dtype == torch.float32
    with torch.no_grad():
        wanted = torch.cat([expected(sample)[0].float() for sample in base.samples])
    assert (answered - wanted).abs().max() < 5e-3


@pytest.mark.parametrize(
    ("dtype", "bounds"), [("int8", (-128, 127)), ("uint8", (0, 255)), ("int16", (-32767, 32767)), ("int8", (-127, 127))]
)
def test_samples_become_integers_as_the_quantized_program_makes_them(dtype: str, bounds: tuple[int, int]) -> None:
    import torch.ao.quantization.fx._decomposed

    scale, zero_point = 0.05, 3
    tensor = ProgramTensor(
        name="x", dtype=dtype, shape=(4096,), dim_order=(0,), scale=scale, zero_point=zero_point,
        quant_min=bounds[0], quant_max=bounds[1],
    )  # fmt: skip
    ties = torch.arange(-40, 40) * scale / 2
    sample = torch.cat([torch.randn(4000, generator=torch.Generator().manual_seed(0)) * 2000, ties])
    expected = torch.ops.quantized_decomposed.quantize_per_tensor(
        sample, scale, zero_point, *bounds, getattr(torch, dtype)
    )
    integers = to_program(sample, tensor)
    assert torch.equal(integers, expected)
    assert (int(integers.min()), int(integers.max())) == bounds
    floats = torch.ops.quantized_decomposed.dequantize_per_tensor(
        integers, scale, zero_point, *bounds, getattr(torch, dtype)
    )
    assert torch.equal(from_program(integers, tensor), floats)


def test_integers_without_a_scale_stand_for_nothing() -> None:
    tensor = ProgramTensor(name="ids", dtype="int64", shape=(1,), dim_order=(0,))
    with pytest.raises(LowerdeckError, match="takes int64 as 'ids' without a scale"):
        to_program(torch.zeros(1), tensor)
