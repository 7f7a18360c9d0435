"""Reads and writes files atomically: a stage that fails leaves the previous file.

New files and folders get the modes that the user's umask leaves, as if they were written in place; `tempfile` would
give them to their owner alone.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from lowerdeck.artifacts import paths
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.fingerprints.digests import file_digest

_Row = TypeVar("_Row")
_CHECK: ContextVar[Callable[[], None] | None] = ContextVar("_CHECK", default=None)
_LATER: ContextVar[list[tuple[Path, Path]] | None] = ContextVar("_LATER", default=None)
_STAGES = {paths.CONFIG: "compose", paths.CODE: "compose", paths.RECORDED: "track"}
"""Stages that write files directly into build/ under other names than their own."""
_NO_OUTPUTS = {paths.READ: "compose", paths.MLFLOW_RUN: "track"}
"""Files that stages write beside their outputs: DVC does not notice that they are missing."""


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to `path` atomically."""
    with replacing_file(path) as temporary, temporary.open("xb") as file:
        file.write(content)


@contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """A new name, whose file replaces `path` if the block succeeds."""
    _check_no_folder(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = beside(path)
    try:
        with naming_file(path):
            yield temporary
            _place(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def together() -> Iterator[None]:
    """Let files and folders written in the block replace the earlier ones when the last is complete, in this order.

    A full disk that ends the block leaves all of the earlier ones, and not those of two builds beside each other.
    """
    if _LATER.get() is not None:
        yield
        return
    later: list[tuple[Path, Path]] = []
    before = _LATER.set(later)
    try:
        yield
        _check()
        while later:
            _replace(*later[0])
            del later[0]
    finally:
        _LATER.reset(before)
        for temporary, _ in later:
            _remove(temporary)


def _place(temporary: Path, path: Path) -> None:
    """Replace `path` by `temporary`, at the end of the block of `together` where there is one."""
    if (later := _LATER.get()) is not None:
        later.append((temporary, path))
        return
    _check()
    _replace(temporary, path)


def _replace(temporary: Path, path: Path) -> None:
    if not temporary.is_dir():
        _check_no_folder(path)
        os.replace(temporary, path)
        return
    discarded = beside(path)
    try:
        if os.path.lexists(path):
            os.replace(path, discarded)
        os.replace(temporary, path)
    finally:
        if os.path.lexists(discarded) and not os.path.lexists(path):  # nothing came into its place
            os.replace(discarded, path)
        _remove(discarded)


def _remove(path: Path) -> None:
    """Remove a file, a link or a folder, which may not be there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _check_no_folder(path: Path) -> None:
    """Raise LowerdeckError if `path` is a folder, which no file can replace."""
    if path.is_dir():
        raise LowerdeckError(
            f"{path} is a folder, and has to be a file; move it away (`mv {path} {path}.old`), and run it again"
        )


@contextmanager
def before_replacing(check: Callable[[], None]) -> Iterator[None]:
    """Let `check` raise an error before files and folders are replaced, while the context is open."""
    before = _CHECK.set(check)
    try:
        yield
    finally:
        _CHECK.reset(before)


def _check() -> None:
    if (check := _CHECK.get()) is not None:
        check()


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Give errors of the system the name `path` where they have none: a full disk is noticed by a write without one."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def beside(path: Path) -> Path:
    """A new name in the folder of `path`, for content that is not complete yet; .gitignore knows such names."""
    return path.with_name(f".{path.name}.{os.urandom(6).hex()}")


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` in UTF-8, atomically."""
    write_bytes(path, text.encode())


def write_unless_equal(path: Path, text: str) -> None:
    """`write_text`, but a file with this content keeps its time, by which what is older is taken for stale."""
    if not path.is_file() or path.read_bytes() != text.encode():
        write_text(path, text)


def write_json(path: Path, value: Any) -> None:
    """Write `value` to `path` as indented JSON with sorted keys; NaN and infinities are rejected."""
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """What `write_json` writes."""
    return json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n"


class _Stored(dict[str, Any]):
    """The object in a file, which is damaged where it lacks a key that is asked for."""

    path = Path()

    def __missing__(self, key: str) -> Any:
        raise damaged(self.path, f"there is no {key}")


def read_json(path: Path, kind: type[dict[str, Any] | list[Any]] = dict) -> Any:
    """The JSON at `path`, of which `write_json` wrote a value of type `kind`.

    Raises:
        LowerdeckError: the file is missing, damaged or has something else; names the stage that writes it. An object
            raises it for each key that it lacks.
    """
    try:
        value = json.loads(require_file(path).read_text(encoding="utf-8"), parse_constant=_not_finite)
    except (ValueError, RecursionError) as error:
        raise damaged(path, error) from error
    if not isinstance(value, kind):
        raise damaged(path, f"it has a {type(value).__name__} in place of a {kind.__name__}")
    if kind is not dict:
        return value
    stored = _Stored(value)
    stored.path = path
    return stored


def _not_finite(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


@contextmanager
def as_written(path: Path) -> Iterator[None]:
    """Take values of another shape than the stage writes, found in the block that reads `path`, for damage.

    Raises:
        LowerdeckError: the block could not do with the content; names the file and the way out.
    """
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise damaged(path, f"there is no {error}" if isinstance(error, KeyError) else error) from error


@contextmanager
def as_tensors(path: Path) -> Iterator[None]:
    """`as_written` for the safetensors file at `path`.

    Raises:
        LowerdeckError: it is damaged; names the file and the way out.
    """
    from safetensors import SafetensorError

    try:
        with as_written(path):
            yield
    except SafetensorError as error:
        raise damaged(path, error) from error


@contextmanager
def as_archive(path: Path) -> Iterator[None]:
    """Take whatever a block cannot do with the zip file at `path`, such as a program, for damage if the file has some.

    Raises:
        LowerdeckError: it is damaged; names the file and the way out.
    """
    try:
        yield
    except Exception as error:
        if reason := _damage_of_archive(path):
            raise damaged(path, reason) from error
        raise


def _damage_of_archive(path: Path) -> str:
    """What is wrong with a zip file; empty where all that it holds has the checksum that it has to have."""
    import struct
    import zipfile
    import zlib

    try:
        with zipfile.ZipFile(path) as archive:
            damaged_part = archive.testzip()
    except (zipfile.BadZipFile, zlib.error, struct.error, ValueError, EOFError, NotImplementedError) as error:
        return str(error) or type(error).__name__
    return f"{damaged_part} has another checksum" if damaged_part else ""


def damaged(path: Path, reason: object) -> LowerdeckError:
    """The error for a file whose content no stage wrote."""
    stage = _NO_OUTPUTS.get(path)
    advice = f"`dvc repro --force {stage}`" if stage else "delete it, and `dvc repro`"
    return LowerdeckError(f"{path} is damaged ({reason}); {advice} makes it again")


@contextmanager
def replace_folder(path: Path) -> Iterator[Path]:
    """A new folder that replaces `path` if the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = beside(path)
    temporary.mkdir()
    try:
        with naming_file(path):
            yield temporary
            _place(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def sha256(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    return file_digest(require_file(path))


def write_table(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write a CSV file for `dvc plots`."""
    import csv

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_text(path, text.getvalue())


def read_table(path: Path, parse: Callable[[dict[str, str]], _Row]) -> list[_Row]:
    """The rows of the CSV file at `path`, as `parse` makes them of the texts by column.

    Raises:
        LowerdeckError: the file is missing or damaged; names the stage that writes it.
    """
    import csv

    try:
        with require_file(path).open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows = []
            for row in reader:
                if None in row or None in row.values():
                    raise ValueError(f"line {reader.line_num} has another number of fields than the header")
                rows.append(parse(row))
            return rows
    except (ValueError, TypeError, KeyError, csv.Error) as error:
        reason = f"there is no column {error}" if isinstance(error, KeyError) else error
        raise damaged(path, reason) from error


def require_file(path: Path) -> Path:
    """`path`, after a check that the file exists.

    Raises:
        LowerdeckError: the file is missing, or a folder is in its place; names the stage that writes it.
    """
    _check_no_folder(path)
    if not path.is_file():
        stage = path.parent.name if path.parent != paths.BUILD else _STAGES.get(path, path.stem)
        stage = f"--force {_NO_OUTPUTS[path]}" if path in _NO_OUTPUTS else stage
        raise LowerdeckError(f"{path} is missing; `dvc repro {stage}` makes it")
    return path
