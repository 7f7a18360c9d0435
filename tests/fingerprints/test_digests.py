"""lowerdeck.fingerprints.digests: equal for equal content, different for whatever differs."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from lowerdeck.fingerprints.digests import ABSENT, Files, digest, file_digest, folder_digest


def test_values_are_digested_as_json_with_sorted_keys() -> None:
    assert digest({"b": 1, "a": [None, "x"]}) == hashlib.sha256(b'{"a": [null, "x"], "b": 1}').hexdigest()
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest(["a", "b"]) != digest(["b", "a"])


def test_values_that_json_lacks_are_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        digest({"x": float("nan")})
    with pytest.raises(TypeError):
        digest({"x": Path()})


def test_files_are_digested_by_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    assert file_digest(tmp_path / "a") == hashlib.sha256(b"content").hexdigest()


def test_folders_are_digested_by_names_and_content(tmp_path: Path) -> None:
    files, folder = Files(), tmp_path / "folder"
    assert files.digest(folder) == ABSENT
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a.py").write_text("1")
    before = files.digest(folder)
    assert before == folder_digest({"sub/a.py": file_digest(folder / "sub" / "a.py")})
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "a.pyc").write_text("cached")
    assert files.digest(folder) == before
    (folder / "sub" / "a.py").write_text("2")
    os.utime(folder / "sub" / "a.py", ns=(1, 1))
    changed = files.digest(folder)
    (folder / "sub" / "a.py").rename(folder / "sub" / "b.py")
    assert len({before, changed, files.digest(folder)}) == 3


def test_a_file_that_is_unchanged_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, path = Files(), tmp_path / "a"
    path.write_text("1")
    before = files.digest(path)
    monkeypatch.setattr("lowerdeck.fingerprints.digests.file_digest", lambda _: pytest.fail("it was read again"))
    assert files.digest(path) == before


def test_a_file_is_read_again_when_its_size_time_or_inode_changed(tmp_path: Path) -> None:
    files, path = Files(), tmp_path / "a"
    path.write_text("1")
    os.utime(path, ns=(1, 1))
    first = files.digest(path)
    path.write_text("22")
    os.utime(path, ns=(1, 1))
    longer = files.digest(path)
    path.write_text("33")
    os.utime(path, ns=(1, 2))
    later = files.digest(path)
    (tmp_path / "b").write_text("44")
    os.utime(tmp_path / "b", ns=(1, 2))
    (tmp_path / "b").replace(path)
    moved = files.digest(path)
    time.sleep(0.05)  # the clock of files is behind
    path.write_text("55")
    os.utime(path, ns=(1, 2))  # as `cp -p`
    assert len({first, longer, later, moved, files.digest(path)}) == 5


def test_links_are_followed_and_caches_are_left_out(tmp_path: Path) -> None:
    """Links that lead back or nowhere, as emacs makes them while it edits, ended a sweep in an unforeseen error."""
    files, folder, elsewhere = Files(), tmp_path / "folder", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (elsewhere / "a").write_text("1")
    (folder / "b").write_text("2")
    for name, target in (("link", elsewhere), ("self", folder), ("up", tmp_path), (".#b", "me@host.1")):
        (folder / name).symlink_to(target)
    before = files.digest(folder)
    assert before == folder_digest({"b": file_digest(folder / "b"), "link/a": file_digest(elsewhere / "a")})
    (folder / "b.pyc").touch()
    (folder / ".ipynb_checkpoints").mkdir()
    (folder / ".ipynb_checkpoints" / "b").touch()
    assert files.digest(folder) == before
    assert files.digest(tmp_path / "missing") == ABSENT
