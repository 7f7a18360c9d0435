"""The preprocessing as data: a C compiler and a JSON reader find the same values."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lowerdeck.datasets import preprocessing
from lowerdeck.firmware.c_literals import c_string
from lowerdeck.firmware.sample_format import HEADER, JSON, SampleFormat

NAMES = ('traffic "light"', "fußgänger??/", "a\\b\n7")
IMAGES = preprocessing.ImageOptions(mean=[0.5, 0.25, 0.125], std=[1.0, 2.0, 4.0], fit="letterbox", fill=114)

PROGRAM = """
#include <stdio.h>
#include "sample_format.h"
int main(void) {
    printf("%d %d %s %.9g %.9g %d\\n", SAMPLE_HEIGHT, SAMPLE_WIDTH, SAMPLE_CHANNELS, SAMPLE_SCALE, SAMPLE_MEAN[2],
           SAMPLE_FILL);
    return SAMPLE_STD_COUNT;
}
"""


def test_a_compiler_reads_what_the_json_says(tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    said = SampleFormat(preprocessing=preprocessing.description(IMAGES, (3, 24, 32)), class_names=NAMES).files()
    for name, content in said.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "main.c").write_text(PROGRAM)
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-trigraphs"]
    done = subprocess.run(["gcc", *flags, "main.c", "-o", "main"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ran = subprocess.run([tmp_path / "main"], capture_output=True)
    assert ran.returncode == 3
    assert ran.stdout.decode().split() == ["24", "32", "RGB", "0.00392156886", "0.125", "114"]
    values = json.loads(said[JSON])
    assert values["class_names"] == list(NAMES)
    assert values["preprocessing"]["std"] == [1.0, 2.0, 4.0]


def test_columns_of_tables_have_a_macro_each(tmp_path: Path) -> None:
    described = {"kind": "columns", "inputs": [["a", "b c"]], "mean": {"b c": 1.5}, "std": {}}
    header = SampleFormat(preprocessing=described).files()[HEADER].decode()
    assert "#define SAMPLE_MEAN_B_C 1.5e+00f" in header
    assert 'static const char *const SAMPLE_INPUTS_0[SAMPLE_INPUTS_0_COUNT] = {"a", "b c"};' in header


@pytest.mark.parametrize("names", [("温度", "湿度"), ("temp-in", "temp_in"), ("T", "t")])
def test_columns_whose_macro_would_be_the_same(names: tuple[str, str]) -> None:
    """The last one's value replaced the others'."""
    described = {"kind": "columns", "inputs": [list(names)], "mean": dict(zip(names, (20.5, 55.0), strict=True))}
    header = SampleFormat(preprocessing=described).files()[HEADER].decode()
    listed = ", ".join(map(c_string, names))
    assert f"SAMPLE_MEAN_NAMES[SAMPLE_MEAN_NAMES_COUNT] = {{{listed}}};" in header
    assert "SAMPLE_MEAN_VALUES[SAMPLE_MEAN_VALUES_COUNT] = {2.05e+01f, 5.5e+01f};" in header
    defined = re.findall(r"^#define (\w+)", header, re.MULTILINE)
    assert len(defined) == len(set(defined))


def test_nothing_to_say_is_no_file() -> None:
    assert SampleFormat().files() == {}
