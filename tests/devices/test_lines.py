"""The line protocol: what Python writes and reads, against the C source that boards compile."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lowerdeck.devices import lines, serial_board

ECHO = r"""
#include <stdio.h>
#include "line_protocol.h"
void lowerdeck_put(char character) { putchar(character); }
int lowerdeck_get(void) { return getchar(); }
int main(void) {
  char line[LOWERDECK_LINE_BYTES];
  uint8_t bytes[8];
  int kind;
  while ((kind = lowerdeck_read_line(line)) != LOWERDECK_NO_LINE) {
    printf("%d ", kind);
    if (kind != LOWERDECK_LINE) puts("");
    else {
      int count = lowerdeck_bytes(line, "data", bytes, sizeof bytes);
      printf("%s|%u|%d|%u\n", line, lowerdeck_number(line, "offset"), count, count > 0 ? bytes[count - 1] : 0u);
    }
  }
  lowerdeck_say_hello("two words", "", "ab", 4096);
  lowerdeck_say_output(1, (const uint8_t *)"\0\xff", 2);
  lowerdeck_say_time(7, 5000000000u, 1000000u);
  return 0;
}
"""


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("apt-get install gcc")
    folder = tmp_path_factory.mktemp("lines")
    (folder / "echo.c").write_text(ECHO)
    (source,) = [path for path in serial_board.SOURCES if path.name == "line_protocol.c"]
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", f"-I{source.parent}", "-o", str(folder / "echo")]
    subprocess.run(["gcc", *flags, str(folder / "echo.c"), str(source)], check=True)
    return folder / "echo"


def said_by(echo: Path, *received: str) -> list[str]:
    answer = subprocess.run(
        [echo], input="".join(f"{line}\n" for line in received), capture_output=True, text=True, check=True
    )
    return answer.stdout.split("\n")


def test_the_crc_is_the_published_one() -> None:
    assert lines.crc16("123456789") == 0x29B1


def test_a_board_reads_what_this_host_writes(echo: Path) -> None:
    line = lines.written("data", offset=64, data="00ff7f")
    assert said_by(echo, line)[0] == "2 data offset=64 data=00ff7f|64|3|127"


def test_a_board_tells_damaged_lines_from_other_ones(echo: Path) -> None:
    line = lines.written("data", offset=64, data="00ff7f")
    received = [line.replace("7f", "7e"), line[:-1], line.replace("LD", "XX"), "", "LD", "LD ", f"LD {'x' * 400}", line]
    kinds = [said.split(" ")[0] for said in said_by(echo, *received)[: len(received)]]
    assert kinds == ["1", "1", "0", "0", "0", "1", "1", "2"]


@pytest.mark.parametrize("data", ["0", "0g", "001122334455667788"])
def test_a_board_refuses_content_that_is_no_bytes_or_too_many(echo: Path, data: str) -> None:
    assert said_by(echo, lines.written("data", offset=1, data=data))[0].endswith("|1|-1|0")


def test_this_host_reads_what_a_board_writes(echo: Path) -> None:
    hello, output, time = (lines.read(line.rstrip("\r")) for line in said_by(echo)[:3])
    assert hello
    assert (hello.verb, hello.version) == ("hello", lines.VERSION)
    assert hello.fields == {"name": "two_words", "key": "-", "program": "ab", "program_room": "4096"}
    assert output
    assert (output.number("index"), output.content("data")) == (1, b"\x00\xff")
    assert time
    assert (time.number("ticks"), time.number("per_second"), time.number("us")) == (5000000000, 1000000, None)


@pytest.mark.parametrize("text", ["", "boot 1.2", "xLD done *1234"])
def test_other_lines_are_not_of_the_protocol(text: str) -> None:
    assert lines.read(text) is None


@pytest.mark.parametrize("text", ["LD done", "LD done *0000", "LD  *ffff", lines.written("run", id=1)[:-2]])
def test_damaged_lines_are_reported_as_damaged(text: str) -> None:
    line = lines.read(text)
    assert line is not None
    assert line.is_damaged


def test_a_field_that_is_no_number_or_no_bytes_is_none() -> None:
    line = lines.read(lines.written("output", offset="x", data="zz"))
    assert line
    assert (line.number("offset"), line.content("data"), line.content("other")) == (None, None, None)


def test_lines_of_the_docs_have_the_right_crc() -> None:
    text = (Path(__file__).parents[2] / "docs" / "line_protocol.md").read_text()
    shown = re.findall(r"^(?:[<>] )?(LD [a-z].*)$", text, re.MULTILINE)
    read = [lines.read(line) for line in shown]
    assert len(read) > 15
    assert all(line and not line.is_damaged for line in read), shown
