"""Arm's FVPs, by a stand-in that takes their command line: none was ever run here."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from lowerdeck.contracts.devices import DeviceError, Provenance
from lowerdeck.devices import corstone_fvp
from tests.devices.conftest import CheckFailure
from tests.devices.programs import firsts, self_test_job
from tests.devices.stand_ins import FVP, executable


@pytest.fixture
def options(tmp_path: Path) -> corstone_fvp.Options:
    (tmp_path / "runner.elf").write_bytes(b"\x7fELF")
    fvp = executable(tmp_path / "fvp", FVP)
    return corstone_fvp.Options(runner=str(tmp_path / "runner.elf"), fvp=fvp, fast=False)


def test_it_executes_and_reads_the_runners_cycles(options: corstone_fvp.Options, workdir: Path) -> None:
    executed = corstone_fvp.execute(options, self_test_job(workdir))
    assert firsts(executed, 3) == [[2, 6, 6], [20, 0, 0]]
    assert executed.metrics == {"npu_active_cycles": 17.0, "npu_total_cycles": 40.0}
    assert executed.notes[0].startswith("runner SHA-256 ")
    described = corstone_fvp.describe(options)
    assert (described.provenance, described.delegates) == (Provenance.SIMULATED, ("EthosUBackend",))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("fault", r"the FVP reports:\n  Hard fault. irq=-13"),
        ("silent", "the runner wrote no out-0.bin"),
        ("short", "the FVP returned 8 bytes, the program's outputs have 64"),
        ("dies", "the FVP ended with SIGABRT"),
        ("hangs", r"the FVP did not finish within [\d.]+ s and was stopped"),
    ],
)
def test_platforms_that_fail(
    options: corstone_fvp.Options, check_failure: CheckFailure, fault: str, message: str
) -> None:
    check_failure(corstone_fvp, options, fault, message)


def test_the_command_lines_are_those_of_executorchs_own_tests(tmp_path: Path) -> None:
    from executorch.backends.arm.test import runner_utils

    source = Path(runner_utils.__file__).read_text()
    for platform in ("corstone-300", "corstone-300-u65", "corstone-320"):
        options = corstone_fvp.Options(runner="x.elf", platform=platform)
        command = corstone_fvp.command_line(options, tmp_path, 1, 60.0)
        assert f'"{command[0]}"' in source or f'fvp = "{command[0]}"' in source
        for name in (argument.split("=")[0] for flag, argument in itertools.pairwise(command) if flag == "-C"):
            assert f"{name}=" in source, name
    with pytest.raises(DeviceError, match="the program has 40 inputs"):
        corstone_fvp.command_line(corstone_fvp.Options(), tmp_path, 40, 60.0)


def test_missing_parts_are_named(tmp_path: Path) -> None:
    lacking = corstone_fvp.describe(corstone_fvp.Options(platform="corstone-310")).missing
    assert [part.what for part in lacking] == ["FVP_Corstone_SSE-310", "the runner arm_executor_runner"]
    with pytest.raises(DeviceError, match="FVP_Corstone_SSE-300_Ethos-U55 is missing: get it from"):
        corstone_fvp.execute(corstone_fvp.Options(), self_test_job(tmp_path))
