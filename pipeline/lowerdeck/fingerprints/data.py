"""Digests of files and samples of datasets, computed without importing torch, which is slow."""

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
    """SHA-256 over the names and contents of several files, in the order of their names.

    Args:
        files: Name -> path. If names are paths relative to the dataset's folder, moving the dataset does not change the
            digest.
    """
    total = hashlib.sha256()
    with tqdm(total=len(files), desc="fingerprint", unit="file", delay=1, disable=not sys.stderr.isatty()) as progress:
        for name in sorted(files):
            total.update(f"{file_digest(files[name])}  {name}\n".encode())
            progress.update()
    return total.hexdigest()


def array_digest(parts: Iterable[bytes]) -> str:
    """SHA-256 of one stored sample, from the bytes of each of its arrays."""
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()


def text_digest(text: str) -> str:
    """SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()
