"""`lowerdeck devices`, `measure`, `run --on` and `check-runtime`, outside of any build."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from executorch.exir import to_edge

from lowerdeck.cli.main import main
from lowerdeck.devices.self_test.expected import PROGRAM
from tests.devices.programs import needs_emulator, program_with_state
from tests.project import REPOSITORY


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """conf/device and params.yaml alone."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/device").symlink_to(REPOSITORY / "conf/device")
    (tmp_path / "params.yaml").write_text("device: host_native\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("project")
def test_devices_are_listed_with_what_they_give(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--json"]) == 0
    found = {status["device"]: status for status in json.loads(capsys.readouterr().out)}
    assert "none" not in found
    assert (found["host_native"]["chosen"], found["host_native"]["missing"]) == (True, [])
    assert found["emulated_cortex_m55"]["provenance"] == "emulated"
    assert "latency" not in found["emulated_cortex_m55"]["gives"]
    assert main(["devices"]) == 0
    assert "host_native *" in capsys.readouterr().out


def test_a_part_that_is_missing_is_shown_with_its_command(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "params.yaml").write_text(
        "device: emulated_cortex_m55\noverrides: {device: {options: {qemu: no-such-qemu}}}\n"
    )
    assert main(["devices"]) == 0
    assert "emulated_cortex_m55 lacks no-such-qemu: apt-get install qemu-system-arm" in capsys.readouterr().out
    assert main(["devices", "check", "emulated_cortex_m55"]) == 1
    assert "no-such-qemu is missing: apt-get install qemu-system-arm" in capsys.readouterr().err


@pytest.mark.usefixtures("project")
def test_a_check_executes_the_self_test(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "check", "host_native"]) == 0
    shown = capsys.readouterr().out
    assert "latency_ms: " in shown
    assert "measured on host_native" in shown
    assert "host_native works: 2 samples gave exact outputs" in shown
    assert main(["devices", "check", "host_nativ"]) == 1
    assert "did you mean 'host_native'?" in capsys.readouterr().err


def test_run_on_a_device_writes_its_outputs(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(project / "x.npy", np.full((1, 16), 3, np.float32))
    command = ["run", str(PROGRAM), "--inputs", "x.npy", "--output", "out", "--on", "host_native"]
    assert main(command) == 0
    assert (np.load(project / "out/output_0.npy") == 12).all()
    assert "2 files written" in capsys.readouterr().out
    assert main([*command[:-1], "none"]) == 1
    assert "there is no such device" in capsys.readouterr().err


def test_files_are_calls_of_a_program_with_state(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its state was the initial one again for every file."""
    program, names = program_with_state(project / "sum.pte"), [f"{number}.npz" for number in (1, 2, 3)]
    for name in names:
        np.savez(project / name, np.full((1, 16), int(name[0]), np.float32))
    command = ["run", str(program), "--inputs", *names, "--output", "out"]
    for where in ([], ["--on", "host_native"]):
        assert main([*command, *where]) == 0
        assert [np.load(project / "out" / name / "output_0.npy")[0, 0] for name in names] == [1, 3, 6]
    for boots in ("emulated_cortex_m55", "nxp_nsys"):
        assert main([*command, "--on", boots]) == 1
        assert f"and {boots} starts every call with the initial state. Give one sample" in capsys.readouterr().err


@pytest.mark.usefixtures("project")
def test_measure_uses_the_chosen_device_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", str(PROGRAM), "--repetitions", "8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["provenance"] == "measured on host_native"
    assert len(found["latencies_ms"]) == 8
    assert found["compared"].startswith("100.00 % equal")
    assert found["inputs"] == "random, as none were given"


class Tokens(torch.nn.Module):
    """Takes indices."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        looked_up: torch.Tensor = self.table(tokens)
        return looked_up


def test_random_integers_that_are_no_indices(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message was that of the runtime alone, about inputs that nobody had given."""
    exported = torch.export.export(Tokens().eval(), (torch.zeros(1, 6, dtype=torch.int64),))
    (project / "tokens.pte").write_bytes(to_edge(exported).to_executorch().buffer)
    assert main(["measure", "tokens.pte"]) == 1
    assert "The inputs were random; where their integers are indices" in capsys.readouterr().err


def test_measure_without_a_device(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "params.yaml").write_text("device: none\n")
    assert main(["measure", str(PROGRAM)]) == 1
    assert "no device is chosen; name one with --on" in capsys.readouterr().err


@needs_emulator
@pytest.mark.usefixtures("project")
def test_measure_on_the_emulator_gives_memory_and_no_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", str(PROGRAM), "--on", "emulated_cortex_m55"]) == 0
    shown = capsys.readouterr().out
    assert "emulated on emulated_cortex_m55 (instructions real, time not)" in shown
    assert "latency" not in shown
    assert "arm_ethosu_npu_init was made to return 0" in shown
    assert "outputs: 100.00 % equal" in shown
    counted, estimated = re.findall(r"method_allocator_bytes: ([\d,]+), (?:emulated|estimated)", shown)
    # The alignment of each allocation is a large part of so small a program; 2.4 to 4.0 % on networks.
    assert 1 <= int(estimated.replace(",", "")) / int(counted.replace(",", "")) < 1.2


def test_check_runtime_names_what_is_missing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "image", "host_native"]) == 0
    (project / "wheel.yaml").write_text(capsys.readouterr().out)
    assert main(["check-runtime", str(PROGRAM), "wheel.yaml"]) == 0
    assert "has all 2 operators" in capsys.readouterr().out
    image = yaml.safe_load((project / "wheel.yaml").read_text())
    image["operators"]["aten::mul.out"] = 3
    del image["operators"]["aten::add.out"]
    (project / "older.yaml").write_text(yaml.safe_dump(image))
    assert main(["check-runtime", str(PROGRAM), "older.yaml"]) == 1
    shown = capsys.readouterr().err
    assert "operator aten::add.out (float32)" in shown
    assert "operator aten::mul.out with 4 arguments; its kernel expects 3" in shown
    (project / "broken.yaml").write_text("name: x\noperators: [1]\n")
    assert main(["check-runtime", str(PROGRAM), "broken.yaml"]) == 1
    assert "operators" in capsys.readouterr().err
