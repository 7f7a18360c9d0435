"""Entries of a store: the files of a result, under names made of digests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from lowerdeck.fingerprints.digests import digest


@dataclass(frozen=True)
class StoredFile:
    """One file of a result."""

    path: str
    """Relative to the folder of the result, with slashes."""
    sha256: str
    size_bytes: int


def entry_content(files: Iterable[StoredFile]) -> bytes:
    """JSON that lists `files`, with a digest of the list."""
    listed = {file.path: [file.sha256, file.size_bytes] for file in files}
    return json.dumps({"files": listed, "sha256": digest(listed)}, sort_keys=True).encode()


def entry_files(content: bytes) -> list[StoredFile]:
    """The files that `entry_content` listed.

    Raises:
        ValueError: `content` is damaged, or contains names that no store writes.
    """
    try:
        entry = json.loads(content)
        listed, expected = dict(entry["files"]), entry["sha256"]
        files = [StoredFile(path, sha256, size_bytes) for path, (sha256, size_bytes) in sorted(listed.items())]
    except (KeyError, TypeError) as error:
        raise ValueError(f"not an entry of a store: {error!r}") from error
    if expected != digest(listed):
        raise ValueError("the list does not match its digest")
    for file in files:
        if not _is_digest(file.sha256) or not is_below(file.path):
            # Somebody who can write to a shared store must not be able to write outside of it.
            raise ValueError(f"no store writes {file}")
    return files


def object_name(sha256: str) -> str:
    """Path of an object in a store."""
    return f"objects/{sharded(sha256)}"


def entry_name(key: str) -> str:
    """Path of a result's entry in a store."""
    return f"entries/{sharded(key)}"


def sharded(sha256: str) -> str:
    """A digest as a path in one of 256 folders."""
    assert _is_digest(sha256), f"{sha256!r} is not a SHA-256"
    return f"{sha256[:2]}/{sha256[2:]}"


def is_below(path: str) -> bool:
    """Whether a relative path stays below its folder."""
    parts = PurePosixPath(path).parts
    return bool(parts) and parts[0] != "/" and ".." not in parts


def _is_digest(text: object) -> bool:
    return isinstance(text, str) and re.fullmatch("[0-9a-f]{64}", text) is not None
