"""lowerdeck.formats.folders: which folders a walk comes to."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.formats.folders import walk


def test_linked_folders_are_walked_unless_they_lead_back_or_are_left_out(tmp_path: Path) -> None:
    first, other = tmp_path / "first", tmp_path / "other"
    (first / "below").mkdir(parents=True)
    (first / "skipped").mkdir()
    other.mkdir()
    for folder in (first / "below", other):
        for name, target in (("back", first), ("up", tmp_path), ("self", folder)):
            (folder / name).symlink_to(target)
    (first / "other").symlink_to(other)
    (first / "nothing").symlink_to(tmp_path / "missing")
    walked = dict(walk(first, lambda path: path.name == "skipped"))
    assert walked == {first: ["nothing"], first / "below": [], first / "other": []}


def test_folders_that_link_to_each_other_end_in_a_message(tmp_path: Path) -> None:
    """There are 11! ways through eleven of them."""
    folders = [tmp_path / f"{number}" for number in range(11)]
    for folder in folders:
        folder.mkdir()
        for other in folders:
            (folder / f"to_{other.name}").symlink_to(other)
    with pytest.raises(LowerdeckError, match="is reached through more than 8 links to folders; remove some"):
        list(walk(folders[0], lambda _: False))
