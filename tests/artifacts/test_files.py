"""lowerdeck.artifacts.files: modes of what is written, and damage of what is read."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.baseline import read_baseline, read_layers, write_baseline
from lowerdeck.artifacts.check_inputs import read_check_inputs, write_check_inputs
from lowerdeck.artifacts.evaluation_results import read_classes, read_confusion, write_evaluation
from lowerdeck.artifacts.files import read_json, replace_folder, together, write_bytes, write_json
from lowerdeck.artifacts.observers import read_observers, write_observers
from lowerdeck.artifacts.programs import read_program, write_program
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.evaluation import OutputSpec, SampleOutputs
from lowerdeck.contracts.quantization import ObserverState
from lowerdeck.evaluation.task_metrics import Measured
from lowerdeck.sweeps.folder import Folder
from lowerdeck.sweeps.snapshot import take
from lowerdeck.sweeps.store.result_store import ResultStore
from tests.handmade_build import write_build


@pytest.fixture(params=[0o022, 0o027, 0o077, 0o002], ids="{:03o}".format)
def mask(request: pytest.FixtureRequest) -> Iterator[int]:
    previous = os.umask(request.param)
    yield request.param
    os.umask(previous)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def contents(folder: Path) -> dict[str, bytes]:
    """The files below a folder by path."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_files_and_folders(tmp_path: Path, mask: int) -> None:
    write_bytes(tmp_path / "new" / "file", b"content")
    write_bytes(tmp_path / "new" / "file", b"replaced")
    with replace_folder(tmp_path / "folder") as folder:
        (folder / "inside").write_text("content")
    assert mode(tmp_path / "new" / "file") == mode(tmp_path / "folder" / "inside") == 0o666 & ~mask
    assert mode(tmp_path / "new") == mode(tmp_path / "folder") == 0o777 & ~mask
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder", "inside", "new"]


def test_what_is_written_together_replaces_nothing_until_the_last_is_complete(tmp_path: Path) -> None:
    def write(content: bytes, error: Exception | None = None) -> None:
        with together():
            write_bytes(tmp_path / "file", content)
            with replace_folder(tmp_path / "folder") as folder:
                write_bytes(folder / "inside", content)
            if error is not None:
                raise error

    write(b"earlier")
    with pytest.raises(OSError, match="No space left"):
        write(b"later", OSError(errno.ENOSPC, "No space left"))
    assert contents(tmp_path) == {"file": b"earlier", "folder/inside": b"earlier"}
    write(b"later")
    assert contents(tmp_path) == {"file": b"later", "folder/inside": b"later"}


def test_an_evaluation_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """metrics.json was written first: a full disk left it beside tables of the build before, and `report` read both."""
    monkeypatch.chdir(tmp_path)
    write_build()
    before = contents(paths.EVALUATED)
    confusion = {"quantized": np.array([[0, 1]])}
    with pytest.raises(ValueError, match="Out of range float values"):
        write_evaluation({"mae": math.nan}, Measured(metrics={}, draws={}, confusion=confusion), ["a"], [b"image"])
    assert contents(paths.EVALUATED) == before


def test_a_folder_in_the_place_of_a_file_is_named_with_the_way_out(tmp_path: Path) -> None:
    """It was an unforeseen IsADirectoryError, or said to be missing."""
    path = tmp_path / "manifest.json"
    path.mkdir()
    for use in (lambda: write_json(path, {}), lambda: read_json(path)):
        with pytest.raises(LowerdeckError, match=r"json is a folder, and has to be a file; move it away \(`mv "):
            use()
    assert [place.name for place in tmp_path.iterdir()] == ["manifest.json"]


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_folder_replaces_what_is_in_its_place(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "twins"
    path.write_text("a file") if kind == "file" else path.symlink_to("nowhere")
    with replace_folder(path) as folder:
        write_bytes(folder / "inside", b"content")
    assert [place.name for place in tmp_path.iterdir()] == ["twins"]
    assert (path / "inside").read_bytes() == b"content"


@pytest.mark.parametrize("end", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()], ids=["full", "Ctrl-C"])
@pytest.mark.parametrize("kind", ["folder", "file", "link", "nothing"])
def test_a_folder_that_cannot_be_put_into_its_place_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, end: BaseException
) -> None:
    """The earlier one stayed under a hidden name, where nothing looked for it."""
    path, move, refused = tmp_path / "twins", os.replace, list[Path]()
    if kind == "folder":
        path.mkdir()
        (path / "inside").write_text("earlier")
    elif kind != "nothing":
        path.write_text("earlier") if kind == "file" else path.symlink_to("nowhere")

    def failing(source: Path, target: Path) -> None:
        if target == path and not refused:
            refused.append(source)
            raise end
        move(source, target)

    def write() -> None:
        with together(), replace_folder(path) as folder:
            (folder / "inside").write_text("later")

    before = contents(tmp_path), path.is_symlink()
    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(type(end)):
        write()
    assert (contents(tmp_path), path.is_symlink()) == before
    assert [place.name for place in tmp_path.iterdir()] == ([] if kind == "nothing" else ["twins"])
    write()
    assert contents(tmp_path) == {"twins/inside": b"later"}


@pytest.mark.parametrize("linked", [False, True])
def test_stores(tmp_path: Path, mask: int, linked: bool) -> None:
    (tmp_path / "file").write_text("content")
    store = ResultStore.open(str(tmp_path / "store"))
    with store.lock("a" * 64):
        store.put("a" * 64, tmp_path, ["file"], linked=linked)
    assert store.get("a" * 64, tmp_path / "taken")
    modes = {path.relative_to(tmp_path / "store").parts[0]: mode(path) for path in (tmp_path / "store").rglob("*/??/*")}
    expected = {"entries": 0o444 & ~mask, "objects": (0o666 if linked else 0o444) & ~mask, "locks": 0o666 & ~mask}
    assert modes == expected
    assert mode(tmp_path / "taken" / "file") == 0o666 & ~mask


def test_sweeps(tmp_path: Path, mask: int) -> None:
    Folder(tmp_path / "sweeps" / "id").log_event("begins")
    assert mode(tmp_path / "sweeps" / "id" / "journal.jsonl") == 0o666 & ~mask
    assert mode(take(tmp_path, [])) == 0o777 & ~mask


ACCURACIES = "float_accuracy,float_accuracy_low,float_accuracy_high"
CONFLICT = "<<<<<<< HEAD\n{row}\n=======\n{row}\n>>>>>>> branch\n"
TABLES: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "confusion.csv": (read_confusion, "actual,predicted\n", "0,1"),
    "classes.csv": (
        read_classes,
        "class,num_samples,float_accuracy,float_accuracy_low,float_accuracy_high\n",
        "0,2,1,1,1",
    ),
    "layers.csv": (read_layers, "node,operator,module,lsb,num_samples,sqnr_db\n", "a,b,c,0.5,2,3"),
}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "it has a list in place of a dict"),
        ("3", "it has a int in place of a dict"),
        ('{"program": NaN}', "NaN is no JSON"),
        ('{"a": {"program": -Infinity}}', "-Infinity is no JSON"),
        ('{"versions": {}}', "there is no program"),
        ('{"program"', "Expecting ':' delimiter"),
    ],
)
def test_json_of_another_shape_is_damaged(tmp_path: Path, text: str, reason: str) -> None:
    """`lowerdeck report` and `explain` ended in an unforeseen TypeError, AttributeError or KeyError."""
    path = tmp_path / "manifest.json"
    path.write_text(text)
    with pytest.raises(
        LowerdeckError, match=rf"manifest\.json is damaged \({reason}.*\); delete it, and `dvc repro` makes"
    ):
        read_json(path)["program"]


def test_json_that_was_written_is_read(tmp_path: Path) -> None:
    write_json(tmp_path / "stored.json", {"a": [1, None]})
    assert read_json(tmp_path / "stored.json") == {"a": [1, None]}
    write_json(tmp_path / "stored.json", [{"a": 0.5}])
    assert read_json(tmp_path / "stored.json", list) == [{"a": 0.5}]
    with pytest.raises(LowerdeckError, match="it has a list in place of a dict"):
        read_json(tmp_path / "stored.json")


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("damage", ["conflict", "another row", "cut", "no header", "not UTF-8"])
def test_damaged_tables_are_named_with_the_way_out(tmp_path: Path, name: str, damage: str) -> None:
    """A conflict that git left was an unforeseen error of `lowerdeck report`."""
    read, header, row = TABLES[name]
    path = tmp_path / name
    path.write_text(f"{header}{row}\n")
    assert read(path)
    content = {
        "conflict": header + CONFLICT.format(row=row),
        "another row": f"{header}{row},1\n",
        "cut": f"{header}{row}\n0",
        "no header": f"{row}\n{row}\n",
        "not UTF-8": f"{header}\udcff{row}\n",
    }[damage]
    path.write_text(content, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(LowerdeckError, match=rf"{name} is damaged \(.+\); delete it, and `dvc repro` makes it again"):
        read(path)
    path.unlink()
    with pytest.raises(LowerdeckError, match=rf"{name} is missing"):
        read(path)


def _write_program() -> Path:
    write_program(paths.EXPORTED, torch.export.export(torch.nn.Linear(2, 2).eval(), (torch.ones(1, 2),)))
    return paths.EXPORTED


def _write_baseline() -> Path:
    rows = [SampleOutputs(target=None, values={"float": (np.ones((1, 3), np.float32),)})] * 2
    write_baseline(rows, (OutputSpec(name="output", lsb=0.5),), range(2), (), "PyTorch")
    return paths.BASELINE


def _write_observers() -> Path:
    write_observers(ObserverState(tensors={"a": torch.ones(4)}, layout="none"))
    return paths.OBSERVERS


def _write_check_inputs() -> Path:
    write_check_inputs([(torch.ones(1, 4),)])
    return paths.CHECK_INPUTS


@pytest.mark.parametrize("damage", ["cut", "empty", "other bytes"])
@pytest.mark.parametrize(
    ("write", "read"),
    [
        (_write_program, lambda: read_program(paths.EXPORTED)),
        (_write_baseline, read_baseline),
        (_write_observers, read_observers),
        (_write_check_inputs, read_check_inputs),
    ],
    ids=["program", "baseline", "observers", "check inputs"],
)
def test_damaged_programs_and_tensors_are_named_with_the_way_out(
    write: Callable[[], Path], read: Callable[[], Any], damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were unforeseen errors of libraries, which named no file: BadZipFile, SafetensorError, OverflowError."""
    monkeypatch.chdir(tmp_path)
    path = write()
    read()
    content = path.read_bytes()
    path.unlink()  # the whole one may be mapped into memory
    path.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "other bytes": b"\xf3\x91" * 2000}[damage])
    with pytest.raises(LowerdeckError, match=rf"^{path} is damaged \(.+\); delete it, and `dvc repro` makes it again"):
        read()
