"""lowerdeck.fingerprints.imports: what source imports, wherever it stands, and what it only names for type checkers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lowerdeck.fingerprints import imports
from lowerdeck.fingerprints.digests import bytes_digest
from lowerdeck.fingerprints.imports import KeptImports, imports_of

SOURCE = b'''
"""A docstring that mentions lowerdeck.config.load is no reference."""
from __future__ import annotations
import os.path
from typing import TYPE_CHECKING
import typing
if TYPE_CHECKING:
    from lowerdeck.only import Types
elif typing.TYPE_CHECKING:
    import lowerdeck.also_only_types
else:
    import lowerdeck.at_run_time

def late():
    from lowerdeck.late import thing as other, more
    from . import sibling
    from ..uncle import cousin
    return "worker.py", "lowerdeck.by_name", "no module"
'''


def test_imports_in_functions_count_and_those_for_type_checkers_do_not() -> None:
    found = imports_of(SOURCE, "lowerdeck.package")
    assert set(found.names) == {
        ("__future__", "annotations"),
        ("os.path", ""),
        ("typing", "TYPE_CHECKING"),
        ("typing", ""),
        ("lowerdeck.at_run_time", ""),
        ("lowerdeck.late", "thing"),
        ("lowerdeck.late", "more"),
        ("lowerdeck.package", "sibling"),
        ("lowerdeck.uncle", "cousin"),
    }


def test_texts_that_may_name_code_are_found_and_prose_is_not() -> None:
    assert set(imports_of(SOURCE, "lowerdeck.package").strings) == {"worker.py", "lowerdeck.by_name"}


@pytest.mark.parametrize(("length", "counts"), [(99, True), (100, False)])
def test_a_long_text_names_no_code(length: int, counts: bool) -> None:
    text = f"{'a' * (length - 3)}.py"
    assert imports_of(f"x = '{text}'".encode(), "lowerdeck").strings == ((text,) if counts else ())


def test_source_that_is_no_python_is_refused() -> None:
    with pytest.raises(SyntaxError):
        imports_of(b"import (", "lowerdeck")


def kept_file(folder: Path, source: bytes = SOURCE) -> Path:
    """A file in which a process has kept the imports of `source`."""
    file = folder / "kept" / "imports.pyc"
    first = KeptImports(file)
    first.imports(source)
    first.write()
    return file


@pytest.fixture(autouse=True)
def _writes_bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)


def test_source_that_was_parsed_before_is_not_parsed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, expected = kept_file(tmp_path), KeptImports(tmp_path / "none").imports(SOURCE)
    monkeypatch.delattr(imports, "_parsed")
    later = KeptImports(file)
    assert later.imports(SOURCE) == expected
    written = file.stat()
    later.write()
    assert file.stat() == written, "nothing new is written"


def test_an_edited_source_is_parsed(tmp_path: Path) -> None:
    later = KeptImports(kept_file(tmp_path))
    assert ("added", "") in later.imports(SOURCE + b"import added\n").names
    assert ("added", "") not in later.imports(SOURCE).names


def test_relative_imports_of_the_same_source_differ_by_its_package() -> None:
    source = b"from . import sibling"
    assert imports_of(source, "a.b").names == (("a.b", "sibling"),)
    assert imports_of(source, "c").names == (("c", "sibling"),)


@pytest.mark.parametrize("damage", ["empty", "cut off", "one letter", "another version", "other content", "a folder"])
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, damage: str) -> None:
    file = kept_file(tmp_path)
    whole = file.read_bytes()
    stamp, _, body = whole.partition(b"\n")
    other = json.dumps({bytes_digest(SOURCE): [[["other", ""]], []]}).encode()
    contents = {
        "empty": b"",
        "cut off": whole[:-20],
        "one letter": whole.replace(b"lowerdeck.late", b"lowerdeck.lame"),
        "another version": bytes_digest(body).encode() + b"\n" + body,
        "other content": stamp + b"\n" + other,
    }
    file.unlink()
    if damage == "a folder":
        file.mkdir()
    else:
        assert contents[damage] != whole
        file.write_bytes(contents[damage])
    later = KeptImports(file)
    assert later.imports(SOURCE) == KeptImports(tmp_path / "none").imports(SOURCE)
    later.write()
    assert damage == "a folder" or file.read_bytes() == whole, "and it is replaced"
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_folder_that_cannot_be_written_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    kept = KeptImports(tmp_path / "file" / "below" / "imports.pyc")
    assert kept.imports(SOURCE).names
    kept.write()


def test_nothing_is_kept_where_python_keeps_no_bytecode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert not kept_file(tmp_path).parent.exists()


def test_what_was_edited_many_times_does_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "_MAX_KEPT", 3)
    for number in range(4):
        last = f"import number{number}".encode()
        kept = KeptImports(tmp_path / "imports.pyc")
        for source in (SOURCE, last):
            kept.imports(source)
        kept.write()
    stored = json.loads((tmp_path / "imports.pyc").read_bytes().partition(b"\n")[2])
    assert {bytes_digest(SOURCE), bytes_digest(last)} <= set(stored)
    assert len(stored) <= 3


def test_processes_at_once_leave_a_whole_file(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from lowerdeck.fingerprints.imports import KeptImports\n"
        "for number in range(100):\n"
        "    kept = KeptImports(Path(sys.argv[1]))\n"
        "    for shared in ('a', 'b', sys.argv[2] + str(number)):\n"
        "        assert kept.imports(f'import {shared}'.encode()).names == ((shared, ''),)\n"
        "    kept.write()\n"
    )
    file = tmp_path / "imports.pyc"
    command = [sys.executable, "-c", program, str(file)]
    environment = {"PATH": ""}  # without PYTHONDONTWRITEBYTECODE
    processes = [subprocess.Popen([*command, name], env=environment) for name in ("x", "y")]
    assert [process.wait() for process in processes] == [0, 0]
    later = KeptImports(file)
    assert later.imports(b"import a").names == (("a", ""),)
    assert set(json.loads(file.read_bytes().partition(b"\n")[2])) >= {bytes_digest(b"import a")}
    assert list(tmp_path.iterdir()) == [file]
