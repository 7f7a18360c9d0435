"""model.memory_format: channels innermost from the exported program to the `.pte`, for every backend."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.conversion import converter_folder, write_converted
from lowerdeck.artifacts.edge_programs import read_edge_program, write_edge_program
from lowerdeck.artifacts.host_programs import open_converted_program
from lowerdeck.artifacts.programs import read_program, write_program
from lowerdeck.backends.neutron.reference.litert import read_graph
from lowerdeck.contracts.plan import DelegationPlan
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.graph.memory_formats import memory_format_of, to_memory_format
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.convert import Converted, convert
from lowerdeck.steps.export import export
from lowerdeck.steps.partition import partition
from lowerdeck.steps.quantize import quantize
from tests.conftest import Lowered, small_network
from tests.marks import quick_first

CHANNELS_LAST = (0, 2, 3, 1)
TARGETS = ("ethos_u55_128", "neutron_imxrt700", "xnnpack_cpu")


@dataclass(frozen=True)
class Build:
    """The small network with channels-last inputs, through all steps."""

    quantized: torch.export.ExportedProgram
    plan: DelegationPlan
    converted: Converted
    folder: Path


@pytest.fixture(scope="module")
def built(lowered: Callable[[str], Lowered], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Build]:
    """(target) -> build, made at the first call."""
    made: dict[str, Build] = {}

    def get(target: str) -> Build:
        if target not in made:
            made[target] = _build(lowered(target), tmp_path_factory.mktemp(target))
        return made[target]

    return get


def _build(contiguous: Lowered, folder: Path) -> Build:
    backend, scheme = contiguous.backend(), QuantizationScheme(name="int8")
    observing, converting = backend.quantizer(scheme), backend.quantizer(scheme)
    assert observing is not None
    assert converting is not None
    with chdir(folder):
        program = export(small_network(), [[1, 3, 32, 32]], memory_format="channels_last")
        write_program(paths.EXPORTED, program)
        read = read_program
        state = calibrate(read(paths.EXPORTED), observing, contiguous.samples, len(contiguous.samples))
        write_program(paths.QUANTIZED, quantize(read(paths.EXPORTED), converting, state)[0])
        quantized = read(paths.QUANTIZED)
        partitioned = partition(read(paths.QUANTIZED), backend)
        write_edge_program(partitioned.program, partitioned.edge_config)
        with converter_folder() as workdir:
            converted = convert(read_edge_program(), partitioned.plan, backend, workdir)
        write_converted(converted, backend.converter())
    return Build(quantized, partitioned.plan, converted, folder)


@pytest.mark.parametrize("target", quick_first(TARGETS))
def test_the_program_takes_channels_last_and_computes_the_same(
    lowered: Callable[[str], Lowered], built: Callable[[str], Build], target: str
) -> None:
    contiguous, build = lowered(target), built(target)
    assert [tensor.dim_order for tensor in contiguous.converted.inputs] == [(0, 1, 2, 3)]
    assert [(tensor.dim_order, tensor.shape) for tensor in build.converted.inputs] == [(CHANNELS_LAST, (1, 3, 32, 32))]
    before, after = contiguous.quantized().module(), build.quantized.module()
    with chdir(build.folder):
        program = open_converted_program("reference")
        for (sample,) in contiguous.samples:
            expected = after(sample)
            assert torch.allclose(before(sample), expected, atol=0.01)
            for x in (sample, sample.to(memory_format=torch.channels_last)):  # any strides are taken
                (found,) = program(x)
                assert torch.allclose(found, expected, atol=0.01)


def test_neutron_has_nothing_to_transpose(lowered: Callable[[str], Lowered], built: Callable[[str], Build]) -> None:
    (before,) = lowered("neutron_imxrt700").converted.partitions
    (after,) = built("neutron_imxrt700").converted.partitions
    operators = read_graph(before.twin or b"").operators
    assert operators[0] == "TRANSPOSE"
    assert read_graph(after.twin or b"").operators == operators[1:]
    assert built("neutron_imxrt700").plan.delegated_compute_nodes == 9


def test_a_stored_program_keeps_its_memory_format(lowered: Callable[[str], Lowered], tmp_path: Path) -> None:
    program = export(small_network(), [[1, 3, 32, 32]], memory_format="channels_last")
    write_program(tmp_path / "program.pt2", program)
    assert memory_format_of(read_program(tmp_path / "program.pt2")) == "channels_last"
    assert memory_format_of(lowered("xnnpack_cpu").exported()) == "contiguous"


def test_only_inputs_of_four_dimensions_have_channels_to_move() -> None:
    image, vector = torch.arange(24.0).reshape(1, 2, 3, 4), torch.zeros(1, 4)
    moved, same = to_memory_format((image, vector), "channels_last")
    assert torch.equal(moved, image)
    assert moved.dim_order() == CHANNELS_LAST
    assert same is vector
    assert to_memory_format((image,), "contiguous")[0] is image
