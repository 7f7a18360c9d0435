"""lowerdeck.fingerprints.bytecode: no bytecode of another source is executed."""

from __future__ import annotations

import importlib.util
import os
import py_compile
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lowerdeck.fingerprints.bytecode import drop_outdated, placed_s


def _write(file: Path, text: str) -> None:
    file.write_text(text)
    os.utime(file, (1e9, 1e9))


def _link(file: Path, text: str) -> None:
    _write(file.with_name("other.py"), text)
    file.unlink()
    file.symlink_to("other.py")


def _printed(folder: Path) -> str:
    return subprocess.run(
        [sys.executable, "-c", "import part; print(part.value)"], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.mark.parametrize("replace", [_write, _link])
def test_bytecode_of_a_file_of_equal_size_and_time_is_dropped(
    tmp_path: Path, replace: Callable[[Path, str], None]
) -> None:
    """Without that, Python executes it: a stage did, though the digest of its code was that of the new file."""
    part = tmp_path / "part.py"
    _write(part, "value = 1")
    time.sleep(0.1)  # the clock of files is behind
    py_compile.compile(str(part))
    time.sleep(0.1)
    replace(part, "value = 2")
    assert _printed(tmp_path) == "1", "Python's own rule, without which this module is not needed"
    drop_outdated([part, tmp_path / "missing.py", tmp_path / "data.txt"])
    assert _printed(tmp_path) == "2"


def test_bytecode_that_is_younger_stays(tmp_path: Path) -> None:
    part = tmp_path / "part.py"
    _write(part, "value = 1")
    time.sleep(0.1)  # the clock of files is behind
    py_compile.compile(str(part))
    drop_outdated([part])
    assert Path(importlib.util.cache_from_source(str(part))).is_file()


def test_a_link_is_as_young_as_it_or_its_file(tmp_path: Path) -> None:
    begun = time.time()
    (tmp_path / "link").symlink_to("nothing")
    assert placed_s(tmp_path / "link") == pytest.approx(begun, abs=5)
    with pytest.raises(OSError, match="missing"):
        placed_s(tmp_path / "missing")
