"""lowerdeck.compat.terminal: no control character of a name reaches a terminal, whoever prints it."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lowerdeck.cli.main import main
from lowerdeck.compat.terminal import EscapingStream, escape_control_characters, escaped_output
from tests.project import REPOSITORY, SOURCES

HOSTILE = "cat\x1b[2J\x1b]0;owned\x07\r\x9b31m\x7f\u202e.\x00"
ESCAPED = r"cat\x1b[2J\x1b]0;owned\x07\x0d\x9b31m\x7f\u202e.\x00"
PACKAGE = REPOSITORY / "pipeline" / "lowerdeck"
SCRIPT = f"""
import sys
from lowerdeck.compat.terminal import escaped_output, progress_bar, terminal_console
with escaped_output():
    name = {HOSTILE!r}
    print(name)
    print(name, file=sys.stderr)
    sys.stdout.writelines([name, "\\n"])
    from rich.table import Table
    from rich.text import Text
    console = terminal_console(force_terminal=True, color_system="truecolor")
    console.print(Text(name, style="bold"))
    console.print(name, markup=False, highlight=False)
    table = Table(title=name)
    table.add_column(name)
    table.add_row(name)
    console.print(table)
    for _ in progress_bar(range(2)):
        pass
    print("caf\\u00e9 \\udcff")
"""


def test_escapes_are_those_of_python() -> None:
    assert escape_control_characters(HOSTILE) == ESCAPED
    assert escape_control_characters("two\nlines\tand déjà vu 日本") == "two\nlines\tand déjà vu 日本"
    assert escape_control_characters(os.fsdecode(b"caf\xe9")) == r"caf\udce9"


def test_print_rich_and_progress_bars_in_one_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=os.environ | {"PYTHONPATH": SOURCES, "COLUMNS": "200"},
        capture_output=True, check=True,
    )  # fmt: skip
    output, errors = done.stdout.decode(), done.stderr.decode()
    for sequence in ("\x1b[2J", "\x1b]", "\x07", "\r", "\x9b", "\x7f", "\u202e", "\x00"):
        assert sequence not in output
    assert output.count(ESCAPED) == 7
    assert "\x1b[1m" in output, "rich's own sequences reach the terminal"
    assert "café \\udcff" in output
    assert errors.startswith(ESCAPED)
    assert "\r100%" in errors, "tqdm's own sequences reach the terminal"


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"PYTHONIOENCODING": "latin-1"}, b"caf\xe9 \\u2265"),
        ({"PYTHONIOENCODING": "cp1252"}, b"caf\xe9 \\u2265"),
        ({"PYTHONIOENCODING": "ascii"}, rb"caf\xe9 \u2265"),
        ({"PYTHONIOENCODING": "ascii:replace"}, b"caf? ?"),
        ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, rb"caf\xe9 \u2265"),
    ],
    ids=lambda value: " ".join(map(":".join, value.items())) if isinstance(value, dict) else "",
)
def test_what_the_encoding_lacks_is_escaped(setting: dict[str, str], expected: bytes) -> None:
    script = (
        "from lowerdeck.compat.terminal import *; from rich.table import Table; text = 'caf\\xe9 \\u2265'\n"
        "with escaped_output():\n    print(text); table = Table(); table.add_column(text); table.add_row(text)\n"
        "    terminal_console().print(table)"
    )
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONIOENCODING", "PYTHONUTF8")}
    done = subprocess.run(
        [sys.executable, "-c", script], env=inherited | {"PYTHONPATH": SOURCES} | setting, capture_output=True,
        check=True,
    )  # fmt: skip
    assert done.stdout.count(expected) == 3


def test_streams_are_put_back_and_stay_what_they_are() -> None:
    before = sys.stdout
    with escaped_output(), escaped_output():
        assert isinstance(sys.stdout, EscapingStream)
        assert not isinstance(sys.stdout.rich_proxied_file, EscapingStream)
        assert sys.stdout.isatty() == before.isatty()
    assert sys.stdout is before
    stream = io.TextIOWrapper(io.BytesIO(), "ascii")
    with contextlib.redirect_stdout(stream), escaped_output():
        assert stream.errors == "backslashreplace"
    assert stream.errors == "strict"
    with pytest.raises(AttributeError):
        EscapingStream(io.StringIO()).no_such_attribute  # noqa: B018


def test_the_message_of_a_command_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", HOSTILE.replace("\x00", "")]) == 1
    errors = capsys.readouterr().err
    assert ESCAPED.removesuffix(r"\x00") in errors
    assert "\x1b" not in errors


def test_nobody_else_opens_a_console_or_a_progress_bar() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != PACKAGE / "compat" / "terminal.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Console", "tqdm")
    ]
    assert found == [], "use lowerdeck.compat.terminal"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_those_of_dev_null_also_for_other_processes(closed: str, tmp_path: Path) -> None:
    program = (
        "import os, subprocess, sys\n"
        "from lowerdeck.compat.terminal import escaped_output\n"
        "with escaped_output():\n"
        "    print('shown'); print('shown', file=sys.stderr); sys.stdout.flush(); sys.stdin.fileno()\n"
        "    code = 'import os; [os.fstat(number) for number in range(3)]'\n"
        "    done = subprocess.run([sys.executable, '-c', code], close_fds=False)\n"
        "    open('status', 'w').write(str((done.returncode, os.open('status', os.O_RDONLY) > 2)))"
    )
    command = f'exec "$0" -c "$1" {closed}'
    environment = os.environ | {"PYTHONPATH": SOURCES}
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, program], cwd=tmp_path, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, (tmp_path / "status").read_text()) == (0, "(0, True)"), done.stderr
    assert done.stdout == ("" if " >&-" in f" {closed}" else "shown\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")  # noqa: PTH110
@pytest.mark.parametrize("write", ["print('x' * 100_000)", "print('x')", r"terminal_console().print('x\n' * 50_000)"])
def test_a_full_standard_output_is_named(write: str, tmp_path: Path) -> None:
    (tmp_path / "conf" / "flavor").mkdir(parents=True)
    code = (
        "import sys; from lowerdeck.cli import main, flavors; from lowerdeck.compat.terminal import terminal_console\n"
        f"flavors._flavors = lambda *_: {write}\nsys.exit(main.main(['flavors']))"
    )
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=os.environ | {"PYTHONPATH": SOURCES}, stdout=full,
            stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    said = "lowerdeck flavors: standard output cannot be written: No space left on device; let it go elsewhere."
    assert (done.returncode, done.stderr) == (1, f"{said} What was built before is unchanged\n")
