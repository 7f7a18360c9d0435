"""Wrong kernels of LiteRT neither put operators on the CPU nor get into metrics: the quantized model decides."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck import backends
from lowerdeck.artifacts import paths
from lowerdeck.artifacts.conversion import write_converted
from lowerdeck.artifacts.edge_programs import read_edge_program, write_edge_program
from lowerdeck.backends.neutron import twin
from lowerdeck.conformance.partitions import twins_by_payload
from lowerdeck.contracts.conformance import ConformanceSettings
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.runtime.loading import open_made_program, open_program
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.convert_conforming import ConvertedConforming, convert_conforming
from lowerdeck.steps.partition import partition
from lowerdeck.steps.quantize import quantize
from tests.runtime.lowering import TARGETS

SAMPLES = [(2 * torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0)),) for _ in range(2)]
Without = Callable[[], None]


class Summed(nn.Module):
    """A convolution, summed over its channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.conv(x).sum(1, keepdim=True)
        return result


@pytest.fixture
def without_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nobody had seen LiteRT's reference kernel for SUM yet."""
    monkeypatch.setattr(twin, "WRONG_KERNELS", MappingProxyType({}))


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, ConvertedConforming, list[str]]:
    """Folder with the outputs of convert, made without the table, quantized model, result, and what was reported."""
    folder, said = tmp_path_factory.mktemp("summed"), list[str]()
    torch.manual_seed(0)
    model, scheme = Summed().eval(), QuantizationScheme(name="int8")
    backend = backends.create("neutron", **TARGETS["neutron"])

    def exported() -> torch.export.ExportedProgram:
        return torch.export.export(model, SAMPLES[0])

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(twin, "WRONG_KERNELS", MappingProxyType({}))
        state = calibrate(exported(), backend.quantizer(scheme), SAMPLES, len(SAMPLES))
        quantized, _ = quantize(exported(), backend.quantizer(scheme), state)
        planned = partition(quantized, backend)
        write_edge_program(planned.program, planned.edge_config)
        (folder / "work").mkdir()
        found = convert_conforming(
            read_edge_program(), planned.plan, backend, SAMPLES, folder / "work", ConformanceSettings(), said.append
        )
        paths.PLANNED.parent.mkdir(parents=True, exist_ok=True)
        paths.PLANNED.write_text("{}")
        write_converted(found.converted, backend.converter(), found)
        assert found.plan == planned.plan  # nothing is excluded because of a kernel of this host
    return folder, quantized.module(check_guards=False), found, said


def error_lsb(program: Any, quantized: Any, found: ConvertedConforming) -> float:
    (scale,) = found.converted.output_scales
    assert scale is not None
    return max(float((program(*sample)[0] - quantized(*sample)).abs().max()) / scale for sample in SAMPLES)


def test_convert_reports_wrong_kernels_and_keeps_the_operator(
    build: tuple[Path, Any, ConvertedConforming, list[str]],
) -> None:
    folder, _, found, said = build
    (line,) = said
    assert "LiteRT's reference kernels compute something else than the quantized model" in line
    assert found.outputs[0].excess <= 1  # the whole program was checked by kernels that agree
    (partition_entry,) = json.loads((folder / paths.MANIFEST).read_text())["partitions"]
    kernels = partition_entry["kernels"]
    assert {name: entry["agrees"] for name, entry in kernels.items()} == {"optimized": True, "reference": False}
    assert kernels["reference"]["max_error"] > 10


@pytest.mark.usefixtures("without_table")
def test_the_host_then_executes_the_partition_by_kernels_that_agree(
    build: tuple[Path, Any, ConvertedConforming, list[str]],
) -> None:
    folder, quantized, found, _ = build
    opened = open_program(
        folder / paths.PROGRAM, manifest=folder / paths.MANIFEST, twins=folder / paths.TWINS, resolver="reference"
    )
    assert "LiteRT optimized kernels" in opened.executor
    assert error_lsb(opened, quantized, found) <= 1.01


@pytest.mark.parametrize("resolver", ["reference", "optimized", "xnnpack"])
def test_kernels_known_to_be_wrong_are_avoided_without_a_manifest(
    build: tuple[Path, Any, ConvertedConforming, list[str]], resolver: Any
) -> None:
    _, quantized, found, _ = build
    twins = twins_by_payload(found.converted.partitions)
    opened = open_made_program(found.converted.program, twins, resolver=resolver)
    assert error_lsb(opened, quantized, found) <= 1.01
    assert ("LiteRT reference kernels" in opened.executor) is False


@pytest.mark.usefixtures("without_table")
def test_the_table_is_still_needed(build: tuple[Path, Any, ConvertedConforming, list[str]]) -> None:
    """Fails once LiteRT's reference kernel for SUM is right: then its entry goes."""
    _, quantized, found, _ = build
    opened = open_made_program(found.converted.program, twins_by_payload(found.converted.partitions))
    assert error_lsb(opened, quantized, found) > 10


@pytest.mark.parametrize(("classes", "delegated"), [(511, 6), (1000, 5)])
def test_a_softmax_at_which_litert_would_abort_stays_on_the_cpu(classes: int, delegated: int) -> None:
    """An untrained classifier finds a thousand classes about equally probable."""
    torch.manual_seed(0)
    head = nn.Linear(4, classes)
    nn.init.normal_(head.weight, std=0.002)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head, nn.Softmax(-1)).eval()
    verdict, detail = lowered(network, [(torch.randn(1, 3, 8, 8),) for _ in range(8)], create("neutron_imxrt700"))
    assert verdict == "right", detail
    assert detail.startswith(f"{delegated} of 6 operators delegated")
