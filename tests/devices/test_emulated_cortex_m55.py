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
from lowerdeck.fingerprints.digests import file_digest
from lowerdeck.formats.elf import symbol_addresses
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


class Network(torch.nn.Module):
    """A convolution and a linear layer, for portable kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.linear = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1), torch.nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.linear(torch.relu(self.convolution(x)).flatten(1))
        return logits


@needs_emulator
@pytest.mark.slow
def test_a_float_network_and_the_estimate_of_its_memory(tmp_path: Path) -> None:
    from executorch.exir import to_edge

    torch.manual_seed(0)
    network, samples = Network().eval(), [(torch.randn(1, 3, 16, 16),) for _ in range(3)]
    program = tmp_path / "network.pte"
    program.write_bytes(to_edge(torch.export.export(network, samples[0])).to_executorch().buffer)
    place = Place(name="m55", module=devices.source("emulated_cortex_m55"), options=device.Options())
    found = measure(program, samples, place, Settings(timeout_s=60))
    with torch.no_grad():
        for outputs, sample in zip(found.outputs, samples, strict=True):
            assert (outputs[0] - network(*sample)).abs().max() < 1e-6
    (estimated,) = found.estimates
    (counted,) = (metric for metric in found.metrics if metric.name == estimated.name)
    assert 1.0 <= estimated.value / counted.value <= 1.05
