"""Data and weights that Lowerdeck's repository has, and of which a workspace has those of the default build only."""

from __future__ import annotations

from pathlib import Path

FOLDERS = (Path("data/stand_ins"), Path("data/checkpoints"))


def where_to_get(path: str | Path) -> str:
    """The end of a message that `path`, relative to the project, does not exist; empty where nobody has it."""
    if any(Path(path).is_relative_to(folder) for folder in FOLDERS):
        return f". A workspace has the default build's data: take {path} from Lowerdeck's repository, to the same place"
    return ""
