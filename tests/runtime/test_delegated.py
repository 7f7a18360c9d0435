"""Programs with Neutron and Ethos-U partitions, executed from the `.pte`, against the quantized torch program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lowerdeck.formats.pte import read_pte
from tests.marks import quick_first
from tests.runtime.lowering import Lowered, flattened

NPUS = ("neutron", "ethos_u")
EXECUTORS = {"neutron": "LiteRT reference kernels", "ethos_u": "TOSA reference model"}


def lsb(quantized: torch.Tensor) -> float:
    """Distance between two neighbouring values of a quantized tensor."""
    values = torch.unique(quantized.flatten())
    return float((values[1:] - values[:-1]).min())


def errors_lsb(build: Lowered, **options: Any) -> torch.Tensor:
    """Distance of every output of every sample from the quantized program, in LSBs."""
    program = build.open(**options)
    errors = []
    for sample in build.samples:
        with torch.no_grad():
            expected = flattened(build.quantized(*sample))
        outputs = program(*sample)
        assert [tuple(output.shape) for output in outputs] == [tuple(output.shape) for output in expected]
        errors += [((a - b) / lsb(b)).abs().round().flatten() for a, b in zip(outputs, expected, strict=True)]
    return torch.cat(errors)


@pytest.mark.parametrize("target", NPUS)
@pytest.mark.parametrize(
    ("network", "channels_last", "partitions"),
    quick_first([("torn", True, 2), ("two", False, 1), ("plain", False, 1), ("torn", False, 2), ("two", True, 1)], 2),
)
def test_agrees_with_quantized_program(
    lowered: Callable[..., Lowered], target: str, network: str, channels_last: bool, partitions: int
) -> None:
    build = lowered(target, network, channels_last)
    program = build.open()
    assert len(program.delegates) == partitions
    assert EXECUTORS[target] in program.executor
    errors = errors_lsb(build)
    assert errors.max() <= 1
    assert (errors == 0).float().mean() > 0.95


def test_neutron_without_transposes_takes_channels_last(lowered: Callable[..., Lowered]) -> None:
    build = lowered("neutron", "two", use_neutron_for_format_conversion=False)
    formats = read_pte(build.program.read_bytes())[0].delegates[0].payload[3:7]
    assert bytes(formats) == b"\x01\x01\x01\x01"
    assert errors_lsb(build).max() <= 1


@pytest.mark.parametrize("resolver", ["optimized", "xnnpack"])
def test_other_litert_kernels(lowered: Callable[..., Lowered], resolver: str) -> None:
    build = lowered("neutron", "torn")
    assert f"LiteRT {resolver} kernels" in build.open(resolver=resolver).executor
    assert errors_lsb(build, resolver=resolver).max() <= 1


@pytest.mark.parametrize("target", NPUS)
def test_int8_inputs_and_outputs(lowered: Callable[..., Lowered], target: str) -> None:
    build, plain = lowered(target, "plain", quantized_io=True), lowered(target, "plain")
    program = build.open()
    info = program.methods["forward"]
    assert info.inputs[0].dtype == info.outputs[0].dtype == torch.int8
    # The boundary's parameters stand in the program that has them: quantize its input as that program does.
    scale, zero_point = _input_quantization(read_pte(plain.program.read_bytes())[0])
    for sample in build.samples:
        quantized = torch.clamp(torch.round(sample[0] / scale) + zero_point, -128, 127).to(torch.int8)
        with torch.no_grad():
            expected = plain.quantized(*sample)
        (output,) = program(quantized)
        centered = output.float() - output.float().mean()
        assert ((expected - expected.mean()) / lsb(expected) - centered).abs().max() < 1.5


def _input_quantization(method: Any) -> tuple[float, int]:
    """Scale and zero point of the program's first quantize operator."""
    call = method.chains[0][0]
    assert "quantize_per_tensor" in method.operators[call.operator]
    return method.values[call.args[1]], method.values[call.args[2]]


@pytest.mark.parametrize("target", NPUS)
def test_same_program_twice_gives_same_bytes(lowered: Callable[..., Lowered], target: str) -> None:
    build = lowered(target, "torn")
    first, second = build.open(), build.open()
    for sample in build.samples[:3]:
        outputs = [program(*sample)[0].numpy().tobytes() for program in (first, second, first)]
        assert len(set(outputs)) == 1


@pytest.mark.parametrize("target", NPUS)
def test_outputs_are_not_overwritten_by_the_next_call(lowered: Callable[..., Lowered], target: str) -> None:
    build = lowered(target, "two")
    program = build.open()
    kept = program(*build.samples[0])
    copies = [output.clone() for output in kept]
    program(*build.samples[1])
    assert all(torch.equal(a, b) for a, b in zip(kept, copies, strict=True))


@pytest.mark.parametrize("target", NPUS)
def test_inputs_may_have_any_strides(lowered: Callable[..., Lowered], target: str) -> None:
    build = lowered(target, "plain")
    program, (x,) = build.open(), build.samples[0]
    strided = torch.stack([x, x], dim=-1)[..., 1]
    assert torch.equal(program(x)[0], program(strided)[0])
    assert torch.equal(program(x)[0], program(x.contiguous(memory_format=torch.channels_last))[0])


def test_xnnpack_runs_on_executorchs_runtime(lowered: Callable[..., Lowered]) -> None:
    build = lowered("xnnpack", "two")
    assert build.open().executor == "ExecuTorch runtime"
    assert errors_lsb(build).max() <= 1
