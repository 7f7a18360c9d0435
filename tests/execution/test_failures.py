"""lowerdeck.execution.failures: what a user reads when a stage or a command fails."""

from __future__ import annotations

import errno
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lowerdeck.artifacts.conversion import converter_folder
from lowerdeck.artifacts.files import replace_folder, write_bytes
from lowerdeck.contracts.devices import DeviceError
from lowerdeck.contracts.errors import LowerdeckError, ProgramError
from lowerdeck.execution.failures import LOGS, failure_message, lasting_cause

KEPT = "What was built before is unchanged"

FULL_MEMORY = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 281474976710656 bytes")
UNMAPPED = ImportError("libtorch_cpu.so: failed to map segment from shared object")
NOT_OPENED = ProgramError("the program's memory cannot be set up")
NOT_OPENED.__cause__ = FULL_MEMORY


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def raised_by(code: str) -> Exception:
    try:
        exec(compile(code, "<test>", "exec"), {})
    except Exception as error:
        return error
    raise AssertionError("the code raises nothing")


def test_an_error_for_the_user_is_its_message() -> None:
    assert failure_message(LowerdeckError("choose another"), "convert") == "choose another"
    assert not LOGS.exists()


def test_what_lies_in_the_program_is_a_finding() -> None:
    assert lasting_cause(ProgramError("no such kernel"), "firmware") == "no such kernel"
    assert not LOGS.exists()


def test_so_is_an_unforeseen_error_whose_traceback_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    assert lasting_cause(raised_by("int('x')"), "firmware").startswith("unforeseen ValueError: invalid literal")
    assert "Traceback" in (LOGS / "firmware.log").read_text()
    assert "build/logs/firmware.log" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        LowerdeckError("run convert first"),
        OSError(errno.ENOSPC, "full"),
        MemoryError(),
        FULL_MEMORY,
        UNMAPPED,
        NOT_OPENED,
    ],
    ids=str,
)
def test_what_may_succeed_another_time_is_no_finding(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        lasting_cause(error, "firmware")
    assert caught.value is error


@pytest.mark.parametrize(
    "code",
    [
        "raise MemoryError",
        "import torch; torch.empty(2**46)",
        "try: bytearray(2**60)\nexcept MemoryError as error: raise ValueError('a pass failed') from error",
        "import os; raise OSError(12, os.strerror(12))",
    ],
)
def test_a_full_memory_is_said_whatever_raises_it(code: str) -> None:
    message = failure_message(raised_by(code), "export")
    assert message.startswith("not enough memory; end other programs, or build a smaller model. The traceback is in ")
    assert KEPT in message


def test_a_message_for_the_user_says_that_a_full_memory_is_its_cause() -> None:
    message = failure_message(NOT_OPENED, "evaluate")
    assert message.startswith("the program's memory cannot be set up\nThe cause: not enough memory; end other")


def test_a_full_disk_says_what_could_not_be_written_and_what_to_do() -> None:
    with pytest.raises(OSError) as caught, Path("/dev/full").open("wb", buffering=0) as full:
        full.write(b"x")
    caught.value.filename = "build/convert/program.pte"
    message = failure_message(caught.value, "convert")
    assert message.startswith("no space is left to write build/convert/program.pte; make room and run it again.")
    assert KEPT in message


def test_a_write_that_fails_names_the_file_and_leaves_the_earlier_one(monkeypatch: pytest.MonkeyPatch) -> None:
    write_bytes(Path("file"), b"earlier")

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError) as caught:
        write_bytes(Path("file"), b"later")
    assert failure_message(caught.value, "x").startswith("no space is left to write file;")
    assert [path.name for path in Path().iterdir()] == ["file"]
    assert Path("file").read_bytes() == b"earlier"


def test_a_folder_that_could_not_be_copied_to_a_full_disk_names_its_first_file() -> None:
    Path("source").mkdir()
    for name in ("a", "b"):
        Path("source", name).write_text(name)

    def copy(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", source, None, target)

    with pytest.raises(shutil.Error) as caught:
        shutil.copytree("source", "copy", copy_function=copy)
    message = failure_message(caught.value, "sweep")
    assert re.match(r"no space is left to write copy/[ab]; make room and run it again\.", message)
    assert not LOGS.exists()


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.EACCES, "no permission for build/x: Permission denied; change its mode or owner"),
        (errno.EROFS, "no permission for build/x: Read-only file system; "),
        (errno.ENAMETOOLONG, "the path build/x is too long for the file system; shorten it"),
    ],
)
def test_other_refusals_of_the_system_are_messages_too(number: int, says: str) -> None:
    import os

    assert says in failure_message(OSError(number, os.strerror(number), "build/x"), "export")
    assert not LOGS.exists()


def test_a_very_long_path_is_shortened() -> None:
    with pytest.raises(OSError) as caught:
        Path("x" * 5000).read_text()
    assert len(failure_message(caught.value, "export")) < 320


def test_an_unforeseen_error_is_one_line_and_its_traceback_is_in_a_file_that_is_named() -> None:
    error = raised_by("def inner():\n    raise KeyError('a' * 1000)\ninner()")
    message = failure_message(error, "quantize")
    first, second = message.splitlines()
    assert first.startswith("unforeseen KeyError: 'aaa")
    assert len(first) < 600
    assert second == f"The traceback is in build/logs/quantize.log. {KEPT}"
    assert "in inner" in (LOGS / "quantize.log").read_text()


def test_the_package_that_raised_it_is_named() -> None:
    error = raised_by("import numpy; numpy.stack([])")
    assert failure_message(error, "export").startswith("numpy raised ValueError: need at least one array to stack\n")


def test_a_way_out_is_named_also_where_no_operator_is() -> None:
    """ExecuTorch refused a transposed convolution in groups with nothing but the assertion."""
    error = raised_by("import torch; torch.nn.Conv2d(3, 4, 1, groups=2)")
    message = failure_message(error, "calibrate")
    assert message.startswith("torch raised ValueError: in_channels must be divisible by groups\n")
    assert "Way out: find its operator by trying one module after another, then keep its module in float" in message
    assert "Way out" not in failure_message(error, "evaluate")
    assert "Way out" not in failure_message(raised_by("import numpy; numpy.stack([])"), "calibrate")


def test_a_traceback_with_lone_surrogates_is_stored() -> None:
    failure_message(raised_by("raise ValueError('\\udcff')"), "export")
    assert "ValueError" in (LOGS / "export.log").read_text()


def test_where_no_file_can_be_written_the_traceback_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    Path("build").write_text("a file")
    message = failure_message(raised_by("raise KeyError(1)"), "export")
    assert f"The traceback is above. {KEPT}" in message
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_a_command_whose_reader_ends_is_silent(tmp_path: Path) -> None:
    (tmp_path / "conf" / "flavor").mkdir(parents=True)
    code = (
        "import sys; from lowerdeck.cli import main, flavors\n"
        "def write(*_):\n    sys.stdout.write('x' * 1_000_000); sys.stdout.flush()\n"
        "flavors._flavors = write\nsys.exit(main.main(['flavors']))"
    )
    command = f"{json.dumps(sys.executable)} -c '{code.replace(chr(39), chr(34))}' | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("x", "")


def test_a_folder_that_cannot_be_filled_is_named_and_the_earlier_one_stays() -> None:
    with replace_folder(Path("twins")) as folder:
        write_bytes(folder / "a", b"earlier")

    def fill() -> None:
        with replace_folder(Path("twins")) as folder:
            (folder / "a").write_bytes(b"later")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError) as caught:
        fill()
    assert failure_message(caught.value, "x").startswith("no space is left to write twins;")
    assert [path.name for path in Path().iterdir()] == ["twins"]
    assert Path("twins/a").read_bytes() == b"earlier"


def test_a_converter_that_finds_no_space_names_its_folder() -> None:
    def fill() -> None:
        with converter_folder():
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError) as caught:
        fill()
    assert failure_message(caught.value, "convert").startswith("no space is left to write build/converter;")


def test_a_limit_of_file_sizes_is_no_space_either() -> None:
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "from pathlib import Path; from lowerdeck.artifacts.files import write_bytes\n"
        "from lowerdeck.execution.failures import failure_message\n"
        "try: write_bytes(Path('program.pte'), bytes(5000))\n"
        "except OSError as error: print(failure_message(error, 'convert'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("no space is left to write program.pte;"), done.stderr
    assert list(Path().iterdir()) == []


def test_what_a_device_wrote_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    message = failure_message(DeviceError("the board hung", "boot\nE: no memory\n"), "measure")
    assert message == "the board hung\nWhat the device wrote is in build/logs/device.log"
    assert (LOGS / "device.log").read_text() == "boot\nE: no memory\n"
    assert failure_message(DeviceError("the board is absent"), "measure") == "the board is absent"
