"""Arm's firmware on QEMU: outputs, memory, and what becomes of an emulator that dies."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from lowerdeck import devices
from lowerdeck.contracts.devices import DeviceError
from lowerdeck.devices import emulated_cortex_m55 as device
from lowerdeck.devices.arm_runner import EXECUTE, addresses
from lowerdeck.devices.gdb import GdbStub
from lowerdeck.devices.self_test.expected import PROGRAM
from lowerdeck.fingerprints.digests import file_digest
from lowerdeck.formats.elf import symbol_addresses
from lowerdeck.formats.pte_requirements import requirements
from lowerdeck.steps.measure import measure
from lowerdeck.steps.measurement import Place, Settings
from tests.devices.programs import firsts, needs_emulator, self_test_job


@needs_emulator
def test_it_executes_and_counts_memory(tmp_path: Path) -> None:
    start = time.monotonic()
    executed = device.execute(device.Options(), self_test_job(tmp_path))
    assert firsts(executed, 3) == [[2, 6, 6], [20, 0, 0]]
    assert list(executed.latencies_ms) == [], "emulation has no time"
    assert executed.metrics["planned_memory_bytes"] >= 64
    assert executed.metrics["method_allocator_bytes"] < executed.metrics["method_pool_peak_bytes"]
    assert "Cortex-M55" in executed.log
    assert executed.notes == (device.NOTE,)
    assert not list(tmp_path.iterdir()), "nothing is left of a job that succeeded"
    assert time.monotonic() - start < 30


@needs_emulator
def test_the_firmwares_file_stays_as_it_is(tmp_path: Path) -> None:
    image = device.firmware(device.Options())
    assert image is not None
    before = file_digest(image)
    device.execute(device.Options(), self_test_job(tmp_path))
    assert file_digest(image) == before == device.runtime_image(device.Options()).sha256


@needs_emulator
def test_what_the_firmware_refuses_is_shown_with_its_words(tmp_path: Path) -> None:
    program = tmp_path / "damaged.pte"
    program.write_bytes(b"\0" * 4096)
    with pytest.raises(DeviceError, match=r"(?s)ended without outputs; its log ends with.*E \[ExecuTorch") as raised:
        device.execute(device.Options(), self_test_job(tmp_path, program))
    assert "Model pointer" in raised.value.log


@needs_emulator
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_an_emulator_that_dies_or_hangs_costs_this_job_alone(tmp_path: Path, end: signal.Signals) -> None:
    def strike() -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            for child in psutil.Process(os.getpid()).children():
                if "qemu" in child.name() and str(tmp_path) in " ".join(child.cmdline()):
                    child.send_signal(end)
                    return
            time.sleep(0.001)

    striker = threading.Thread(target=strike)
    striker.start()
    samples = self_test_job(tmp_path).samples
    job = self_test_job(tmp_path, samples=[samples[0]] * 20, timeout_s=6.0)
    with pytest.raises(DeviceError, match="the emulator"):
        device.execute(device.Options(), job)
    striker.join()
    assert not [child for child in psutil.Process(os.getpid()).children() if "qemu" in child.name()]
    other = tmp_path / "other"
    other.mkdir()
    assert firsts(device.execute(device.Options(), self_test_job(other)), 1) == [[2], [20]]


def test_missing_parts_are_named_with_the_commands_that_get_them(tmp_path: Path) -> None:
    lacking = device.describe(device.Options(qemu="no-such-qemu", image=str(tmp_path / "no.axf"))).missing
    assert [part.how for part in lacking] == ["apt-get install qemu-system-arm", device.INSTALL]
    with pytest.raises(DeviceError, match="no-such-qemu is missing: apt-get install qemu-system-arm"):
        device.execute(device.Options(qemu="no-such-qemu"), self_test_job(tmp_path))


def test_another_file_is_no_firmware(tmp_path: Path) -> None:
    image = tmp_path / "other.axf"
    image.write_bytes(b"not an ELF file")
    with pytest.raises(DeviceError, match=re.escape("known is Arm ML Evaluation Kit")):
        device.runtime_image(device.Options(image=str(image)))
    with pytest.raises(ValueError, match="not a 32-bit little-endian ELF file"):
        symbol_addresses(image.read_bytes(), ["main"])


@needs_emulator
def test_symbols_of_the_firmware(tmp_path: Path) -> None:
    image: Any = device.firmware(device.Options())
    found = symbol_addresses(image.read_bytes(), ["arm_ethosu_npu_init", "no_such_symbol"])
    assert found == {"arm_ethosu_npu_init": 0x8494}, "the bit of Thumb code is cleared"
    with pytest.raises(ValueError, match="it refers to"):
        symbol_addresses(image.read_bytes()[:100_000], ["main"])


def layers(number: int) -> tuple[torch.nn.Module, tuple[int, ...]]:
    """Networks for portable kernels, each with the shape of its input."""
    nn = torch.nn
    chosen: list[tuple[list[torch.nn.Module], tuple[int, ...]]] = [
        ([nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)], (1, 3, 16, 16)),
        ([nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 64)], (1, 64)),
        ([nn.Linear(16, 16), nn.ReLU()] * 6, (1, 16)),
        ([nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 3), nn.Flatten()], (1, 1, 16, 16)),
    ]
    modules, shape = chosen[number]
    return nn.Sequential(*modules).eval(), shape


@needs_emulator
@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_float_networks_and_the_estimate_of_their_memory(tmp_path: Path, number: int) -> None:
    from executorch.exir import to_edge

    torch.manual_seed(0)
    network, shape = layers(number)
    samples = [(torch.randn(shape),) for _ in range(2)]
    program = tmp_path / "network.pte"
    program.write_bytes(to_edge(torch.export.export(network, samples[0])).to_executorch().buffer)
    place = Place(name="m55", module=devices.source("emulated_cortex_m55"), options=device.Options())
    found = measure(program, samples, place, Settings(timeout_s=120, profile=True))
    with torch.no_grad():
        for outputs, sample in zip(found.outputs, samples, strict=True):
            assert (outputs[0] - network(*sample)).abs().max() < 1e-6
    counted = {metric.name: metric.value for metric in found.metrics}
    (estimated,) = found.estimates
    assert 1.0 <= estimated.value / counted[estimated.name] <= 1.06
    # The sum that a memory budget makes, against the firmware's own high-water mark.
    budget = counted["planned_memory_bytes"] + estimated.value + requirements(program.read_bytes()).input_bytes
    assert 0.99 <= budget / counted["method_pool_peak_bytes"] <= 1.06
    costs = [cost.processor_instructions or 0 for cost in found.operators]
    assert all(costs)
    assert 0.9 <= sum(costs) / counted["instructions"] <= 1.0


@needs_emulator
def test_counts_of_instructions_are_the_same_every_time(tmp_path: Path) -> None:
    place = Place(name="m55", module=devices.source("emulated_cortex_m55"), options=device.Options())
    samples = [(torch.ones(1, 16),)]
    found = [measure(PROGRAM, samples, place, Settings(timeout_s=60, profile=True)) for _ in range(2)]
    assert found[0].operators == found[1].operators
    assert found[0].metrics == found[1].metrics
    assert [cost.median_ms for cost in found[0].operators] == [None, None], "emulation has no time"


@needs_emulator
def test_a_crash_of_the_firmware_is_noticed(tmp_path: Path) -> None:
    image = device.firmware(device.Options())
    assert image is not None
    crashing = tmp_path / "crashing.axf"
    content = bytearray(image.read_bytes())
    place = addresses(image)
    offset = content.index(image.read_bytes()[0x1000 + place[EXECUTE] :][:16])
    content[offset : offset + 2] = b"\xff\xde"  # udf, an undefined instruction
    crashing.write_bytes(content)
    with pytest.raises(DeviceError, match=r"the firmware crashed \(HardFault\)|the emulator ended"):
        device.execute(device.Options(image=str(crashing)), self_test_job(tmp_path, timeout_s=30.0))


def test_a_folder_whose_path_is_too_long_for_a_socket(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"AF_UNIX path too long; name a folder with a short path in TMPDIR"):
        GdbStub(tmp_path / ("x" * 108), time.monotonic() + 5, lambda: True)
