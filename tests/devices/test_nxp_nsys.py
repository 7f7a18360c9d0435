"""NXP's simulator, by a stand-in that takes the runner's command line: neither was ever run here."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowerdeck.contracts.devices import DeviceError, Provenance
from lowerdeck.devices import nxp_nsys
from tests.devices.conftest import CheckFailure
from tests.devices.programs import firsts, self_test_job
from tests.devices.stand_ins import NSYS_RUNNER, executable


@pytest.fixture
def options(tmp_path: Path) -> nxp_nsys.Options:
    for name in ("neutron.ini", "NeutronFirmware.elf"):
        (tmp_path / name).touch()
    return nxp_nsys.Options(
        runner=executable(tmp_path / "runner", NSYS_RUNNER),
        nsys=executable(tmp_path / "nsys", ""),
        config=str(tmp_path / "neutron.ini"),
        firmware=str(tmp_path / "NeutronFirmware.elf"),
    )


def test_it_executes(options: nxp_nsys.Options, workdir: Path) -> None:
    assert firsts(nxp_nsys.execute(options, self_test_job(workdir)), 3) == [[2, 6, 6], [20, 0, 0]]
    described = nxp_nsys.describe(options)
    assert (described.provenance, described.delegates) == (Provenance.SIMULATED, ("NeutronBackend",))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("error", r"(?s)NSYS ended with status 1; .*Internal Neutron NPU driver error 8"),
        ("silent", "nxp_executor_runner returned 0 bytes, the program's outputs have 64"),
        ("dies", "NSYS ended with SIGABRT"),
        ("hangs", r"NSYS did not finish within [\d.]+ s and was stopped"),
    ],
)
def test_simulators_that_fail(options: nxp_nsys.Options, check_failure: CheckFailure, fault: str, message: str) -> None:
    check_failure(nxp_nsys, options, fault, message)


def test_the_command_line_is_that_of_executorchs_own_tests(options: nxp_nsys.Options, tmp_path: Path) -> None:
    import executorch

    (installed,) = executorch.__path__
    source = Path(installed, "backends", "nxp", "tests", "nsys_testing.py").read_text()
    command = nxp_nsys.command_line(options, tmp_path / "p.pte", [tmp_path / "0000.bin"], tmp_path)
    assert all(f"{argument}" in source for argument in command[1::2])
    assert all(argument.startswith("--") for argument in command[1::2])


def test_missing_parts_are_named(tmp_path: Path) -> None:
    lacking = nxp_nsys.describe(nxp_nsys.Options()).missing
    assert [part.what for part in lacking] == [
        "nxp_executor_runner",
        "nsys",
        "neutron-imxrt700.ini",
        "Neutron's firmware",
    ]
    with pytest.raises(DeviceError, match="nsys is missing: pip install eiq_nsys from NXP's index"):
        nxp_nsys.execute(nxp_nsys.Options(), self_test_job(tmp_path))
