"""lowerdeck.firmware.header: compilers take the header, and the array is the program, where and how asked for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from lowerdeck.firmware.header import Placement, c_header

PROGRAM = bytes(range(256)) * 3 + b"end"
SOURCE = """
#include <stdint.h>
#include <stdio.h>
#include "{header}"
int main(void) {{
  printf("%u %u %u\\n", (unsigned)sizeof({array}), (unsigned)({macro}), (unsigned)((uintptr_t){array} % {alignment}));
  return fwrite({array}, 1, sizeof({array}), stderr) != sizeof({array});
}}
"""
PLACEMENTS = {
    "cortex_m": Placement(array_name="model_pte", alignment_bytes=16, section="network_model_sec"),
    "elsewhere": Placement(array_name="Net_2", alignment_bytes=4096, section=".rodata.net"),
    "plain": Placement(array_name="model_pte", alignment_bytes=64, section=None),
}
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None or shutil.which("g++") is None, reason="needs GCC")


@pytest.mark.parametrize("command", [["gcc", "-std=c99"], ["gcc", "-std=c11"], ["g++", "-std=c++17"]], ids=" ".join)
@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS)
def test_a_program_finds_the_bytes_aligned(tmp_path: Path, command: list[str], placement: Placement) -> None:
    (tmp_path / placement.file_name).write_text(c_header(PROGRAM, placement, ["a note", "named */ oddly\n*/"]))
    source = tmp_path / f"main.{'c' if command[0] == 'gcc' else 'cpp'}"
    names = {"header": placement.file_name, "array": placement.array_name, "macro": placement.size_macro}
    source.write_text(SOURCE.format(**names, alignment=placement.alignment_bytes))
    executable = tmp_path / "main"
    flags = ["-Wall", "-Wextra", "-Werror", "-o", str(executable), str(source)]
    compiled = subprocess.run([*command, *flags], capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr
    ran = subprocess.run([executable], capture_output=True, check=True)
    assert ran.stdout.decode().split() == [str(len(PROGRAM)), str(len(PROGRAM)), "0"]
    assert ran.stderr == PROGRAM
    sections = subprocess.run(["readelf", "-SW", str(executable)], capture_output=True, text=True, check=True).stdout
    assert ("network_model_sec" in sections) == (placement.section == "network_model_sec")


def test_a_section_of_ones_own_is_in_the_object_file(tmp_path: Path) -> None:
    placement = PLACEMENTS["elsewhere"]
    (tmp_path / placement.file_name).write_text(c_header(PROGRAM, placement, []))
    (tmp_path / "main.c").write_text(f'#include "{placement.file_name}"\n#include "{placement.file_name}"\n')
    subprocess.run(["gcc", "-c", "main.c"], cwd=tmp_path, check=True)
    headers = subprocess.run(["readelf", "-SW", "main.o"], cwd=tmp_path, capture_output=True, text=True, check=True)
    (line,) = [line for line in headers.stdout.splitlines() if ".rodata.net" in line]
    assert line.split()[-1] == "4096"
