"""What is replaced for speed only does not change results: each with and without it, on small models."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower

from lowerdeck.backends.neutron.converter import REFERENCE, ConverterOptions, convert
from lowerdeck.backends.neutron.reference import neutron_converter
from lowerdeck.backends.xnnpack.patterns import possible_patterns
from lowerdeck.compat.exir import COMPILE_ALL
from lowerdeck.compat.fast_graph_passes import fast_graph_passes
from lowerdeck.compat.nxp import EDGE_PASS
from lowerdeck.compat.replacement import Replacement
from lowerdeck.compat.torchao import FOLD_TRAINED_BATCH_NORM, HISTOGRAM_SEARCH
from lowerdeck.contracts.backends import Backend
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.execution.dvc_state import LOCK
from lowerdeck.execution.quiet_dvc import locks_without_comments
from lowerdeck.formats import pt2
from lowerdeck.sweeps import hydra_multirun
from tests.backends.neutron.test_converter import RELU
from tests.compat.replacements import declared, without
from tests.conftest import TARGETS, Lowered, backend_for, small_network
from tests.marks import quick_first
from tests.networks import MIXED_SHAPE, Mixed, lowered_network, quantized_mixed, quantized_network
from tests.project import REPOSITORY

EXAMPLE = (torch.zeros(1, 3, 32, 32),)


def exported() -> torch.export.ExportedProgram:
    return torch.export.export(small_network(), EXAMPLE)


def stored(program: torch.export.ExportedProgram) -> bytes:
    file = io.BytesIO()
    pt2.save(program, file)
    return file.getvalue()


def lowered_program(program: torch.export.ExportedProgram) -> bytes:
    manager = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    return bytes(manager.to_executorch().buffer)


def quantized() -> bytes:
    """The small network, whose batch norms are folded, quantized for XNNPACK."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    from lowerdeck.backends.xnnpack.backend import Xnnpack
    from lowerdeck.backends.xnnpack.options import Device

    quantizer = Xnnpack(device=Device()).quantizer(QuantizationScheme(name="int8"))
    prepared = prepare_pt2e(torch.export.export(small_network(), EXAMPLE).module(), quantizer)
    prepared(*EXAMPLE)
    return stored(torch.export.export(convert_pt2e(prepared), EXAMPLE))


def quantized_by_histograms() -> bytes:
    """A network quantized for Neutron, whose biases derive their scales from histograms of activations."""
    return stored(quantized_mixed(neutron()))


def quantized_behind_batch_norm() -> bytes:
    """A network quantized for XNNPACK with a batch norm that is folded into no convolution, and one that is."""
    from torch import nn

    from lowerdeck.backends.xnnpack.backend import Xnnpack
    from lowerdeck.backends.xnnpack.options import Device

    torch.manual_seed(0)
    network = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    return stored(quantized_network(network, Xnnpack(device=Device()), [(torch.randn(1, 3, 8, 8),)]))


def partitioned() -> bytes:
    """The edge program of such a network, which some of NXP's passes change and others leave."""
    from lowerdeck.steps.partition import partition

    made, file = partition(quantized_mixed(neutron()), neutron()), io.BytesIO()
    pt2.save_edge(made.program, made.edge_config, file)
    return file.getvalue()


def compiled(folder: Path) -> tuple[bytes, list[bytes]]:
    """The program of such a network, which has several partitions, and their payloads."""
    made = lowered_network(Mixed(), MIXED_SHAPE, neutron(), folder)
    return made.program, [partition.payload for partition in made.partitions]


def neutron() -> Backend:
    return backend_for(yaml.safe_load((REPOSITORY / "conf" / "target" / "neutron_imxrt700.yaml").read_text()))


def sweep(folder: Path) -> list[tuple[int, tuple[str, ...]]]:
    """The points that Hydra runs."""
    from hydra.core.hydra_config import HydraConfig

    points: list[tuple[int, tuple[str, ...]]] = []

    def task(config: Any) -> None:
        job = HydraConfig.get()
        points.append((int(job.job.num), tuple(job.overrides.task)))

    (folder / "config.yaml").write_text("a: 0\nb: 0\n")
    hydra_multirun.multirun(folder, task, ["a=1,2", "b=3,4"])
    return points


def lock_again() -> bytes:
    """The project's dvc.lock, with values of all kinds in its parameters, read and written as after every stage."""
    from dvc.utils.serialize import _yaml

    odd = ["yes", "007", "2026-01-01", "1e-05", 1e-05, -0.0, 3.0, "a: b", "# c", "", None, True, "ä", "x\ny", [], {}]
    locked = _yaml.parse_yaml((REPOSITORY / "dvc.lock").read_text(), LOCK)
    locked["stages"]["odd"] = {"cmd": "w " * 100, "params": {"build/config.yaml": {"values": odd}}}
    written = _yaml.dumps_yaml(locked)
    return str(_yaml.dumps_yaml(_yaml.parse_yaml_for_update(written, LOCK))).encode()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[object, object]]:
    """Name of a replacement -> what comes out without it and with it."""
    path = tmp_path_factory.mktemp("stored") / "program.pt2"
    path.write_bytes(stored(exported()))
    plain_program, plain_bytes = torch.export.load(path), lowered_program(exported())
    pt2._drop_derived_ranges(plain_program)
    with fast_graph_passes():
        program = exported()
        fast_stored, fast = stored(program), lowered_program(program)
    with possible_patterns(to_edge_transform_and_lower(exported()).exported_program()):
        spared = lowered_program(exported())
    context = neutron_converter.CompilationContext(neutron_converter.getNeutronTarget("imxrt700"))
    loaded = stored(plain_program), stored(pt2.load(path))
    graphs = ((path.read_bytes(), plain_bytes), (fast_stored, fast))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Replacement, "active", nullcontext)
        plain_stored = stored(exported())
        plain_points = sweep(tmp_path_factory.mktemp("plain"))
        plain_quantized = quantized()
    plain_lock = lock_again()
    with locks_without_comments():
        fast_lock = lock_again()
    with without(HISTOGRAM_SEARCH):
        searched_again = quantized_by_histograms()
    with without(FOLD_TRAINED_BATCH_NORM):
        folded_again = quantized_behind_batch_norm()
    with without(EDGE_PASS):
        traced_again = partitioned()
    with without(COMPILE_ALL):
        one_by_one = compiled(tmp_path_factory.mktemp("one"))
    return {
        "dvc.PARSE_FOR_UPDATE": (plain_lock, fast_lock),
        "nxp.EDGE_PASS": (traced_again, partitioned()),
        "pytorch.COPY_PROVENANCE": graphs,
        "pytorch.RECOMPILE": graphs,
        "pytorch.KERNEL_ANNOTATIONS": graphs,
        "pytorch.DELEGATE_CALL": graphs,
        "exir.CHECK_DTYPES": graphs,
        "exir.EXECUTE_NODE": graphs,
        "exir.COMPILE_ALL": (one_by_one, compiled(tmp_path_factory.mktemp("several"))),
        "pytorch.RUN_DECOMPOSITIONS": graphs,
        "pytorch.CANONICALIZE": (plain_stored, fast_stored),
        "pytorch.SERIALIZER_TYPING": loaded,
        "pytorch.TENSOR_META": loaded,
        "pytorch.CREATE_ARGUMENT": graphs,
        "pytorch.MATERIALIZE_COMPOSITE_OPERATORS": graphs,
        "torchao.FOLD_TRAINED_BATCH_NORM": (folded_again, quantized_behind_batch_norm()),
        "torchao.HISTOGRAM_SEARCH": (searched_again, quantized_by_histograms()),
        "xnnpack.ANNOTATORS": (plain_quantized, quantized()),
        "xnnpack.ATTENTION_PATTERNS": (plain_bytes, spared),
        "xnnpack.INTERPOLATION_PATTERNS": (plain_bytes, spared),
        "flatbuffers.NUMPY_FINDER": (
            neutron_converter.convertModel(RELU, context),  # in this process, which has imported NumPy
            convert(REFERENCE, RELU, "imxrt700", ConverterOptions(), tmp_path_factory.mktemp("converted")).model,
        ),
        "hydra.VALIDATE_BATCH": (plain_points, sweep(tmp_path_factory.mktemp("spared"))),
    }


SPEED_ONLY = [name for name, replacement in declared().items() if replacement.for_speed_only]


@pytest.mark.slow
@pytest.mark.parametrize("name", SPEED_ONLY)
def test_the_result_is_the_same(name: str, results: dict[str, tuple[object, object]]) -> None:
    without, with_it = results[name]
    assert without
    assert without == with_it


@pytest.mark.slow
def test_nothing_else_is_compared(results: dict[str, tuple[object, object]]) -> None:
    assert sorted(results) == sorted(SPEED_ONLY)


@pytest.mark.slow
def test_a_sweep_has_all_its_points(results: dict[str, tuple[object, object]]) -> None:
    points = [(f"a={a}", f"b={b}") for a, b in itertools.product((1, 2), (3, 4))]
    assert results["hydra.VALIDATE_BATCH"][1] == list(enumerate(points))


@pytest.mark.parametrize("target", quick_first(TARGETS))
def test_a_lowered_program_is_the_same_for_every_backend(
    target: str,
    lowered: Callable[[str], Lowered],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fixture was lowered with fast_graph_passes; here all replacements for speed are off."""
    from lowerdeck.steps import convert, partition

    small = lowered(target)

    def inactive(replacement: Replacement, value: object) -> Any:
        return nullcontext() if replacement.for_speed_only else activate(replacement, value)

    activate = Replacement.active
    monkeypatch.setattr(Replacement, "active", inactive)
    planned = partition.partition(small.quantized(), backend_for(small.target))
    assert planned.plan == small.plan
    assert convert.convert(small.edge(), small.plan, backend_for(small.target), tmp_path).program == (
        small.converted.program
    )
