"""Every backend against contracts.backends.Backend."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.exir.backend.partitioner import Partitioner
from torchao.quantization.pt2e.quantizer import Quantizer

from lowerdeck import backends
from lowerdeck.contracts.backends import Backend
from lowerdeck.contracts.errors import UnsupportedQuantizationError
from lowerdeck.contracts.lowering import Lowering
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.convert import convert
from lowerdeck.steps.quantize import quantize
from tests.conftest import ALL_TARGETS, TARGETS, Lowered

NAMES = backends.available()
TARGET_OF = {
    "cortex_m": "cortex_m55",
    "ethos_u": "ethos_u55_128",
    "neutron": "neutron_imxrt700",
    "xnnpack": "xnnpack_cpu",
}
DECLARED = [
    (name, scheme, granularity)
    for name in NAMES
    for scheme, granularities in backends.source(name).schemes.items()
    for granularity in granularities
]
UNITS = ("_cycles", "_ms", "_bytes", "_macs", "macs", "_operators")
TWIN_IDENTIFIERS = {"litert": b"TFL3", "tosa": b"TOSA"}


def test_every_backend_has_a_target_here() -> None:
    assert set(TARGET_OF) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_declaration_is_complete(name: str) -> None:
    backend = backends.source(name)
    assert backend.name == name
    for part in (backend.device_type, backend.options_type, backend.flavor_options_type):
        assert dataclasses.is_dataclass(part)
        assert vars(part)["__dataclass_params__"].frozen
    assert "int8" in backend.schemes
    for granularities in backend.schemes.values():
        assert granularities[0] in ("backend_default", "per_group")  # in groups of which size is the user's choice
        assert set(granularities) <= {"backend_default", "per_tensor", "per_channel", "per_group"}
    for scheme, others in backend.mixed_schemes.items():
        assert {scheme, *others} <= set(backend.schemes)
    assert backend.converters


@pytest.mark.parametrize("target", ALL_TARGETS)
def test_what_is_created_is_a_backend(lowered: Callable[[str], Lowered], target: str) -> None:
    backend = lowered(target).backend()
    assert isinstance(backend, Backend)
    assert backend.name == lowered(target).target["backend"]


@pytest.mark.parametrize("target", ALL_TARGETS)
def test_the_device_alone_is_enough_for_the_quantizer(lowered: Callable[[str], Lowered], target: str) -> None:
    chosen = lowered(target).target
    backend = backends.create(chosen["backend"], device=chosen["device"])
    assert isinstance(backend.quantizer(QuantizationScheme(name="int8")), Quantizer)


@pytest.mark.parametrize(("name", "scheme", "granularity"), DECLARED)
def test_what_is_declared_quantizes_as_declared(
    lowered: Callable[[str], Lowered], name: str, scheme: str, granularity: str
) -> None:
    build = lowered(TARGET_OF[name])
    wanted = QuantizationScheme(name=scheme, weight_granularity=granularity)
    observing, converting = build.backend().quantizer(wanted), build.backend().quantizer(wanted)
    if wanted.rebuilds_model or not wanted.is_quantized:
        assert observing is None
        return
    assert observing is not None
    assert converting is not None
    state = calibrate(build.exported(), observing, build.samples[:2], 2)
    program, tensors = quantize(build.exported(), converting, state)
    stored = program.state_dict | program.constants
    # XNNPACK quantizes no convolution with an activation function behind it while it runs: the linear layer is left.
    dimensions, expected = (2, [10]) if scheme == "int8_dynamic" else (4, [8, 8])
    weights = [tensor for tensor in tensors if tensor.source in stored and stored[tensor.source].ndim == dimensions]
    assert all(stored[tensor.source].dtype == torch.int8 for tensor in weights)
    channels = [1, 1] if granularity == "per_tensor" else expected
    assert [len(tensor.scales) for tensor in weights] == channels


@pytest.mark.parametrize("name", NAMES)
def test_another_scheme_is_refused_with_those_that_it_has(lowered: Callable[[str], Lowered], name: str) -> None:
    backend = lowered(TARGET_OF[name]).backend()
    with pytest.raises(UnsupportedQuantizationError) as caught:
        backend.quantizer(QuantizationScheme(name="int3"))
    assert "'int3'" in str(caught.value)
    for scheme in backends.source(name).schemes:
        assert scheme in str(caught.value)


def test_neutron_refuses_a_granularity_that_its_quantizer_cannot_choose(lowered: Callable[[str], Lowered]) -> None:
    backend = lowered("neutron_imxrt700").backend()
    with pytest.raises(UnsupportedQuantizationError, match=r"per_channel weights; it has: int8 with backend_default"):
        backend.quantizer(QuantizationScheme(name="int8", weight_granularity="per_channel"))


@pytest.mark.parametrize("target", ALL_TARGETS)
def test_the_lowering_is_new_at_every_call(lowered: Callable[[str], Lowered], target: str) -> None:
    build = lowered(target)
    backend, program = build.backend(), build.quantized()
    first, second = backend.lowering(program), backend.lowering(program)
    assert isinstance(first, Lowering)
    assert isinstance(first.partitioner, Partitioner)
    assert first.partitioner is not second.partitioner


@pytest.mark.parametrize("target", TARGETS)
def test_every_partition_is_compiled_into_the_program(lowered: Callable[[str], Lowered], target: str) -> None:
    build = lowered(target)
    assert len(build.converted.partitions) == len(build.plan.partitions) > 0
    for partition in build.converted.partitions:
        assert partition.payload
        assert partition.payload in build.converted.program
        assert all(key.endswith(UNITS) for key in partition.estimates)
        assert all(value >= 0 for value in partition.estimates.values())
        if build.target["backend"] == "xnnpack":
            assert partition.twin is None
        else:
            assert partition.twin is not None
            assert partition.twin[4:8] == TWIN_IDENTIFIERS[str(partition.twin_format)]


@pytest.mark.parametrize("target", [name for name in TARGETS if name.startswith("ethos")])
def test_vela_predicts_cycles_time_and_memory(lowered: Callable[[str], Lowered], target: str) -> None:
    estimates = lowered(target).converted.estimates
    assert estimates["total_cycles"] >= estimates["npu_cycles"] > 0
    assert estimates["inference_time_ms"] > 0
    assert estimates["npu_operators"] > 0
    assert any(key.endswith("ram_bytes") and value > 0 for key, value in estimates.items())
    assert sum(value > 0 for key, value in estimates.items() if key.endswith("_bytes")) >= 2  # constants as well


def hooks() -> list[Any]:
    """What of ExecuTorch the backends replace while they compile."""
    from executorch.backends.arm.ethosu import EthosUBackend
    from executorch.backends.nxp.backend.neutron_converter_manager import NeutronConverterManager
    from executorch.backends.nxp.nxp_backend import PayloadComposer
    from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend

    return [
        EthosUBackend._compile_tosa_flatbuffer,
        NeutronConverterManager.convert,
        PayloadComposer.get_binary_payload,
        XnnpackBackend.preprocess,
    ]


@pytest.mark.parametrize("target", TARGETS)
def test_compiling_leaves_executorch_as_it_was(lowered: Callable[[str], Lowered], tmp_path: Path, target: str) -> None:
    lowered("neutron_imxrt700").backend().lowering(lowered("neutron_imxrt700").quantized())  # provides its SDK
    before = hooks()
    backend = lowered(target).backend()
    with backend.compiling(tmp_path):
        assert hooks() != before
    assert hooks() == before
    with pytest.raises(ZeroDivisionError), backend.compiling(tmp_path):
        1 / 0  # noqa: B018
    assert hooks() == before


@pytest.mark.parametrize("target", ALL_TARGETS)
def test_converting_again_gives_the_same_bytes_and_estimates(
    lowered: Callable[[str], Lowered], tmp_path: Path, target: str
) -> None:
    build = lowered(target)
    again = convert(build.edge(), build.plan, build.backend(), tmp_path)
    assert again.program == build.converted.program
    assert again.partitions == build.converted.partitions


@pytest.mark.parametrize("target", ALL_TARGETS)
def test_the_converter_has_a_name_and_a_version(lowered: Callable[[str], Lowered], target: str) -> None:
    build = lowered(target)
    assert build.converter.flavor == build.target["default_flavor"]
    assert build.converter.name
    assert re.search(r"\d", build.converter.version)
    host_only = target == "neutron_imxrt700"
    assert build.converter.host_only is host_only
    caveat = "reference flavor: runs on the host only, not on the NPU"
    assert build.converter.caveat == (caveat if host_only else None)


@pytest.mark.parametrize("target", ALL_TARGETS)
def test_quantized_outputs_follow_the_float_ones(lowered: Callable[[str], Lowered], target: str) -> None:
    build = lowered(target)
    network, quantized = build.exported().module(), build.quantized().module()
    for sample in build.samples:
        expected, found = network(*sample), quantized(*sample)
        assert not torch.equal(expected, found)
        assert (expected - found).abs().max() < 0.1 * expected.abs().max()
