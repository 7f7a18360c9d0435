"""Files are written to a temporary name and moved into place: a stage that fails leaves what was there before."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lowerdeck.artifacts import paths
from lowerdeck.contracts.errors import LowerdeckError


def write_bytes(path: Path, content: bytes) -> None:
    """Put `content` at `path`, all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o644)  # mkstemp makes files that only their owner can read
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Put `text` at `path` in UTF-8, all of it or nothing."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Put `value` at `path` as indented JSON with sorted keys; NaN and infinities are refused."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """The JSON at `path`.

    Raises:
        LowerdeckError: it is not there; names the stage that writes it.
    """
    return json.loads(require_file(path).read_text())


@contextmanager
def replace_folder(path: Path) -> Iterator[Path]:
    """A new folder that takes the place of `path` when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        temporary.chmod(0o755)
        yield temporary
        discarded = temporary.with_name(temporary.name + ".old")
        if path.exists():
            os.replace(path, discarded)
        os.replace(temporary, path)
        shutil.rmtree(discarded, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sha256(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with require_file(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_table(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A CSV file, as `dvc plots` reads it."""
    import csv

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_text(path, text.getvalue())


def require_file(path: Path) -> Path:
    """`path`, which is a file.

    Raises:
        LowerdeckError: it is not there; names the stage that writes it.
    """
    if not path.is_file():
        stage = path.parent.name if path != paths.CONFIG else "compose"
        raise LowerdeckError(f"{path} is missing; `dvc repro {stage}` makes it")
    return path
