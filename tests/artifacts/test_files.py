"""lowerdeck.artifacts.files: what is written has the modes that the user's umask leaves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowerdeck.artifacts.files import replace_folder, write_bytes
from lowerdeck.sweeps.folder import Folder
from lowerdeck.sweeps.snapshot import take
from lowerdeck.sweeps.store.result_store import ResultStore


@pytest.fixture(params=[0o022, 0o027, 0o077, 0o002], ids="{:03o}".format)
def mask(request: pytest.FixtureRequest) -> Iterator[int]:
    previous = os.umask(request.param)
    yield request.param
    os.umask(previous)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_files_and_folders(tmp_path: Path, mask: int) -> None:
    write_bytes(tmp_path / "new" / "file", b"content")
    write_bytes(tmp_path / "new" / "file", b"replaced")
    with replace_folder(tmp_path / "folder") as folder:
        (folder / "inside").write_text("content")
    assert mode(tmp_path / "new" / "file") == mode(tmp_path / "folder" / "inside") == 0o666 & ~mask
    assert mode(tmp_path / "new") == mode(tmp_path / "folder") == 0o777 & ~mask
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder", "inside", "new"]


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
