"""An Android device, by a stand-in for adb and the runner of this machine: no Android device was ever used here."""

from __future__ import annotations

import shutil
from pathlib import Path

import executorch
import pytest

from lowerdeck.contracts.devices import DeviceError
from lowerdeck.devices import android_adb, native
from lowerdeck.formats.etdump import read_etdump
from tests.devices.programs import firsts, program_with_state, self_test_job
from tests.devices.stand_ins import ADB, executable


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("g++") is None:
        pytest.skip("apt-get install g++")
    (sdk,) = executorch.__path__
    return native.build(["g++"], Path(sdk), tmp_path_factory.mktemp("sdk") / "runner")


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the device calls /data/local/tmp."""
    (tmp_path / "disk").mkdir()
    monkeypatch.setenv("STAND_IN_DISK", str(tmp_path / "disk"))
    (tmp_path / "work").mkdir()
    return tmp_path / "disk"


@pytest.fixture
def options(runner: Path, disk: Path) -> android_adb.Options:
    adb = executable(disk.parent / "adb", ADB)
    return android_adb.Options(adb=adb, runner=str(runner), serial="emulator-5554")


def test_it_executes_times_profiles_and_leaves_nothing(options: android_adb.Options, disk: Path) -> None:
    job = self_test_job(disk.parent / "work", warm_up=1, repetitions=4, profile=True)
    executed = android_adb.execute(options, job)
    assert firsts(executed, 3) == [[2, 6, 6], [20, 0, 0]]
    assert len(executed.latencies_ms) == 4
    assert executed.etdump is not None
    assert len(read_etdump(executed.etdump)) == 2
    assert not list(disk.iterdir())


def test_state_lasts_over_a_stream_alone(options: android_adb.Options, disk: Path) -> None:
    program, work = program_with_state(disk.parent / "sum.pte"), disk.parent / "work"
    jobs = [self_test_job(work, program, keeps_state=True, is_stream=is_stream) for is_stream in (False, True)]
    assert [firsts(android_adb.execute(options, job), 1) for job in jobs] == [[[1], [4]], [[1], [5]]]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("full", r"(?s)adb push ended with status 1; .*No space left on device"),
        ("dies", "adb shell ended with SIGABRT"),
        pytest.param("hangs", "adb shell did not finish within", marks=pytest.mark.slow),
    ],
)
def test_devices_that_fail(
    options: android_adb.Options, disk: Path, monkeypatch: pytest.MonkeyPatch, fault: str, message: str
) -> None:
    monkeypatch.setenv("STAND_IN_FAULT", fault)
    with pytest.raises(DeviceError, match=message):
        android_adb.execute(options, self_test_job(disk.parent / "work", timeout_s=2.0))


def test_a_program_that_the_runner_refuses(options: android_adb.Options, disk: Path) -> None:
    program = disk.parent / "damaged.pte"
    program.write_bytes(bytes(4096))
    with pytest.raises(DeviceError, match=r"(?s)the runner on the device failed: .*status 1"):
        android_adb.execute(options, self_test_job(disk.parent / "work", program))
    assert not list(disk.iterdir())


def test_what_is_missing_or_wrong_is_named(options: android_adb.Options, disk: Path) -> None:
    lacking = android_adb.describe(android_adb.Options(adb="no-such-adb")).missing
    assert [part.what for part in lacking] == ["no-such-adb", "the runner in runner_android"]
    absent = android_adb.Options(adb=options.adb, runner=options.runner, serial="other")
    with pytest.raises(DeviceError, match=r"(?s)adb shell ended with status 1; .*device 'other' not found"):
        android_adb.execute(absent, self_test_job(disk.parent / "work"))
    with pytest.raises(ValueError, match="it must be a mask in hexadecimal digits"):
        android_adb.Options(cpus="4; rm")
