"""Where the outputs of a device begin to differ from the host's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from executorch.exir import to_edge

from lowerdeck import devices
from lowerdeck.contracts.devices import DeviceError, Execution, Job
from lowerdeck.contracts.errors import ProgramError
from lowerdeck.devices import emulated_cortex_m55, host_native
from lowerdeck.devices.self_test import expected
from lowerdeck.formats.etdump import read_intermediates
from lowerdeck.formats.pte import read_pte
from lowerdeck.steps.device_difference import FIRST_DIFFERENCE, compared, difference_metrics, interpreted
from lowerdeck.steps.measure import measure
from lowerdeck.steps.measurement import Place, Settings
from tests.conftest import Lowered
from tests.devices.programs import needs_emulator

SAMPLES = expected.samples()
(FORWARD,) = (method for method in read_pte(expected.PROGRAM.read_bytes()) if method.name == "forward")
NODES = {"1": ["aten_add_tensor"]}
HOST = Place(name="host", module=devices.source("host_native"), options=host_native.Options())
WANTED = [expected.outputs(sample) for sample in SAMPLES]


def off_by_one(options: host_native.Options, job: Job) -> Execution:
    """host_native, whose second instruction adds one too much to its first element."""
    found = host_native.execute(options, job)
    tensors = {index: [bytearray(content) for content in contents] for index, contents in found.intermediates.items()}
    outputs = [[dataclasses.replace(sample[0], content=b"\0" * 64)] for sample in found.outputs]
    if tensors:
        torch.frombuffer(tensors[1][-1], dtype=torch.float32)[0] += 1
    return dataclasses.replace(
        found, outputs=outputs, intermediates={index: list(map(bytes, each)) for index, each in tensors.items()}
    )


def place(execute: object) -> Place:
    return Place(name="x", module=SimpleNamespace(describe=host_native.describe, execute=execute), options=HOST.options)


def test_the_first_operator_that_differs_is_named() -> None:
    device = measure(expected.PROGRAM, SAMPLES, place(off_by_one), Settings())
    found = difference_metrics(expected.PROGRAM, SAMPLES, device.outputs, WANTED, place(off_by_one), Settings(), NODES)
    assert found == {
        FIRST_DIFFERENCE: "instruction 1, aten::add.out (aten_add_tensor): 1 of 16 elements (float32), at most 1 off"
    }


def test_nan_in_place_of_zero_is_a_difference() -> None:
    """NaN counted as zero, so that it was not looked for where it begins."""
    zeros = [(torch.zeros(expected.SHAPE),) for _ in SAMPLES]
    nans = [(torch.full(expected.SHAPE, float("nan")),) for _ in SAMPLES]
    found = difference_metrics(expected.PROGRAM, SAMPLES, nans, zeros, place(off_by_one), Settings(), NODES)
    assert found[FIRST_DIFFERENCE].startswith("instruction 1, aten::add.out")
    assert not difference_metrics(expected.PROGRAM, SAMPLES, nans, nans, place(off_by_one), Settings(), NODES)


def test_equal_outputs_have_no_difference_and_cost_nothing() -> None:
    def fail(options: object, job: Job) -> Execution:
        raise AssertionError("it was executed again")

    assert not difference_metrics(expected.PROGRAM, SAMPLES, WANTED, WANTED, place(fail), Settings(), NODES)
    assert not difference_metrics(expected.PROGRAM, SAMPLES, WANTED, None, place(fail), Settings(), NODES)


def test_a_device_that_cannot_tell_leaves_it_unknown() -> None:
    def fail(options: object, job: Job) -> Execution:
        raise DeviceError("it is gone")

    zeros = [(torch.zeros(expected.SHAPE),) for _ in SAMPLES]
    found = difference_metrics(expected.PROGRAM, SAMPLES, zeros, WANTED, place(fail), Settings(), NODES)
    assert found == {FIRST_DIFFERENCE: "unknown: it is gone"}
    found = difference_metrics(expected.PROGRAM, SAMPLES, zeros, WANTED, HOST, Settings(), NODES)
    assert found == {FIRST_DIFFERENCE: "unknown: no operator's tensors differ when they are read"}
    with pytest.raises(ProgramError, match="the tensors of no operator"):
        compared(FORWARD, {}, {0: []}, NODES)


def test_etdump_and_interpreter_agree_on_every_output() -> None:
    host = interpreted(FORWARD, SAMPLES[0])
    logged = measure(expected.PROGRAM, SAMPLES, HOST, Settings(), intermediates=True).intermediates
    assert {index: contents[-1] for index, contents in host.items()} == {
        index: content for index, (content,) in logged.items()
    }
    with pytest.raises(ValueError, match="not an ETDump"):
        read_intermediates(b"ED00", b"")


class Doubled(torch.nn.Module):
    """Computes two outputs, one of which has no elements."""

    def forward(self, given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        doubled = given + given
        return doubled, doubled[:, :0] + 1


@pytest.mark.parametrize(("dtype", "is_readable"), [(torch.float32, True), (torch.float16, False)])
def test_tensors_that_the_runtime_cannot_log(tmp_path: Path, dtype: torch.dtype, is_readable: bool) -> None:
    """The message was one about greetings of the board's shell, and a tensor without elements was damaged."""
    sample = (torch.ones(1, 4, dtype=dtype),)
    path = tmp_path / "program.pte"
    path.write_bytes(to_edge(torch.export.export(Doubled(), sample)).to_executorch().buffer)
    if is_readable:
        logged = measure(path, [sample], HOST, Settings(), intermediates=True).intermediates
        assert [len(contents[-1]) for contents in logged.values()][-1] == 0
        return
    with pytest.raises(DeviceError, match=r"cannot be read .* none in half precision") as raised:
        measure(path, [sample], HOST, Settings(), intermediates=True)
    assert "something else than outputs" not in str(raised.value)


@needs_emulator
def test_the_emulated_device_returns_the_tensors_in_its_memory() -> None:
    m55 = Place(name="m55", module=devices.source("emulated_cortex_m55"), options=emulated_cortex_m55.Options())
    found = measure(expected.PROGRAM, SAMPLES, m55, Settings(timeout_s=60, profile=True), intermediates=True)
    assert found.intermediates == interpreted(FORWARD, SAMPLES[0])
    assert [cost.processor_instructions or 0 for cost in found.operators] > [100, 100]


@needs_emulator
@pytest.mark.heavy
@pytest.mark.slow
def test_operators_of_cmsis_nn_one_by_one(lowered: Callable[[str], Lowered], tmp_path: Path) -> None:
    build, path = lowered("cortex_m55"), tmp_path / "program.pte"
    path.write_bytes(build.converted.program)
    (forward,) = (method for method in read_pte(build.converted.program) if method.name == "forward")
    sample = tuple(value.contiguous(memory_format=torch.channels_last) for value in build.samples[0])
    host = interpreted(forward, sample)
    assert len(host) == len(forward.chains[0])
    assert set(build.converted.instructions) == set(host)
