"""Digests of what datasets read from disk, without torch, so that a build key is cheap to compute."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from tqdm import tqdm

from lowerdeck.contracts.errors import LowerdeckError


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, hexadecimal.

    Raises:
        LowerdeckError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise LowerdeckError(f"cannot read {path}: {error.strerror or error}") from error


def files_digest(files: Mapping[str, Path]) -> str:
    """SHA-256 over several files: over every name and content, in the order of the names.

    Args:
        files: the path of each file by the name that enters the digest, e.g. its path relative to the dataset's folder,
        so
            that a dataset that moves as a whole keeps its digest.
    """
    total = hashlib.sha256()
    with tqdm(total=len(files), desc="fingerprint", unit="file", delay=1, disable=not sys.stderr.isatty()) as progress:
        for name in sorted(files):
            total.update(f"{file_digest(files[name])}  {name}\n".encode())
            progress.update()
    return total.hexdigest()


def array_digest(parts: Iterable[bytes]) -> str:
    """SHA-256 of one stored sample, given as the bytes of each of its arrays."""
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()


def text_digest(text: str) -> str:
    """SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()
