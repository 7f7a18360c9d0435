"""Fingerprints of what a build is given: files and samples of datasets, weights, factories, device descriptions.

Computed without importing torch, which is slow.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from lowerdeck.compat.terminal import progress_bar
from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.fingerprints import digests
from lowerdeck.formats.folders import walk
from lowerdeck.formats.regular_files import check_regular

_READ: ContextVar[set[Path] | None] = ContextVar("_READ", default=None)


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, hexadecimal.

    Raises:
        LowerdeckError: it cannot be read, or is a pipe or device.
    """
    try:
        return digests.file_digest(check_regular(path))
    except OSError as error:
        advice = "; correct the path, or put the file there" if isinstance(error, FileNotFoundError) else ""
        raise LowerdeckError(f"cannot read {path}: {error.strerror or error}{advice}") from error


def files_digest(files: Mapping[str, Path]) -> str:
    """SHA-256 over the names and contents of several files, in the order of their names.

    Args:
        files: Name -> path. If names are paths relative to the dataset's folder, moving the dataset does not change the
            digest.

    Raises:
        LowerdeckError: a file cannot be read, or its name is not UTF-8.
    """
    total, read = hashlib.sha256(), _READ.get()
    if read is not None:
        read.update(files.values())
    with progress_bar(total=len(files), desc="fingerprint", unit="file", delay=1, disable=None) as progress:
        for name in sorted(files):
            try:
                encoded = name.encode()
            except UnicodeEncodeError:
                raise LowerdeckError(
                    f"the name of {files[name]} is not UTF-8; rename it (`convmv -f latin1 -t utf8` renames many)"
                ) from None
            total.update(f"{file_digest(files[name])}  ".encode() + encoded + b"\n")
            progress.update()
    return total.hexdigest()


def contents_digest(paths: Iterable[Path]) -> str | None:
    """SHA-256 over the contents of files, whatever their names; None without files."""
    contents = [bytes.fromhex(file_digest(path)) for path in paths]
    return array_digest(contents) if contents else None


def model_digest(model: Mapping[str, Any], code: str = "") -> str:
    """SHA-256 over what a model is made of.

    Args:
        model: The section of the configuration as plain values. Weights may be a file, a folder or a name. Of the
            options, the source of a factory (`module:name`) counts, and the contents of all files and folders that
            they name, of folders without hidden files, copies that editors keep, and bytecode.
        code: Digest of the user's code beyond that; empty without any.

    Raises:
        ConfigurationError: a package around the factory cannot be imported.
    """
    total, weights, module = hashlib.sha256(), model["weights"], factory_module(model)
    if weights is not None:
        total.update(_contents(Path(weights)) or weights.encode())
    if module is not None:
        spec = _spec(module)
        if spec is not None and spec.origin is not None and Path(spec.origin).is_file():
            total.update(_read(Path(spec.origin)))
    for path in map(Path, filter(_names_a_file, _texts(model["options"]))):
        total.update(_contents(path) or b"")
    total.update(code.encode())
    return total.hexdigest()


def factory_module(model: Mapping[str, Any]) -> str | None:
    """The module of the factory that the section `model` names; None if it names none.

    In a source of a plug-in, `factory` may mean something else, e.g. a number.
    """
    factory = model["options"].get("factory") if model["source"] == "factory" else None
    return None if factory is None else str(factory).partition(":")[0]


def _spec(module: str) -> ModuleSpec | None:
    """Where a module is; the packages around it are imported."""
    try:
        return importlib.util.find_spec(module)
    except Exception as error:  # whatever the user's code raises
        frames = traceback.extract_tb(error.__traceback__)
        places = [
            f" (line {frame.lineno} of {frame.filename})" for frame in frames if "importlib" not in frame.filename
        ]
        raise ConfigurationError(
            f"model.options.factory: the package around {module} cannot be imported: {type(error).__name__}: {error}"
            f"{places[-1] if len(places) > 1 else ''}. Correct it, or name a module outside of it"
        ) from error


@contextmanager
def files_read() -> Iterator[set[Path]]:
    """The files that `files_digest` reads meanwhile, by the paths that it was given."""
    read = set[Path]()
    before = _READ.set(read)
    try:
        yield read
    finally:
        _READ.reset(before)


def unwatched(values: Any, watched: Iterable[str], read: Collection[Path] = ()) -> list[str]:
    """What is outside of the `watched` files and folders, all relative to the current folder.

    Args:
        values: Options, of which the files and folders that they name are listed.
        watched: Files and folders.
        read: Files, of which the folders are listed where no option names them: a list of images may name any.
    """
    known = {Path(each).resolve() for each in watched}
    named = [text for text in _texts(values) if _names_a_file(text)]
    given = {Path(text) for text in named}
    further = sorted({str(path.parent) for path in read if path not in given})
    found = []
    for text in (*named, *further):
        path = Path(text).resolve()
        if known.isdisjoint((path, *path.parents)):
            found.append(_in_dvc_yaml(text))
            known.add(path)
    return sorted(found)


def names_list(values: Any) -> bool:
    """Whether options name a list of samples, whose files may be anywhere."""
    return any(text.endswith((".csv", ".json", ".jsonl", ".parquet")) for text in _texts(values))


def _in_dvc_yaml(text: str) -> str:
    """A path as dvc.yaml is to name it: relative to the current folder, if it is below that."""
    place = os.path.relpath(text)
    return text if place.startswith(os.pardir) else place


def _contents(path: Path) -> bytes | None:
    """What a file holds, or a digest of a folder's files without hidden and spare ones; None for what is neither."""
    if path.is_dir():
        walked = walk(path, lambda folder: digests.UNREAD.fullmatch(folder.name) is not None)
        files = (parent / name for parent, names in walked for name in names if not digests.UNREAD.fullmatch(name))
        return files_digest({file.relative_to(path).as_posix(): file for file in files if file.is_file()}).encode()
    if not path.is_file():
        return None
    if (read := _READ.get()) is not None:
        read.add(path)
    return _read(path)


def _read(path: Path) -> bytes:
    """The content of a file, which is also noted where somebody keeps what was read."""
    if _READ.get() is not None:
        digests.file_digest(path)
    return path.read_bytes()


def _names_a_file(text: str) -> bool:
    """Whether an option names a file, or a folder by a path: a word such as `data` may mean anything else."""
    try:
        return Path(text).is_file() or ("/" in text.rstrip("./") and Path(text).is_dir())
    except (OSError, ValueError):  # too long for a path, or a null character
        return False


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _texts(each)


def array_digest(parts: Iterable[bytes]) -> str:
    """SHA-256 of one stored sample, from the bytes of each of its arrays."""
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()


def text_digest(text: str) -> str:
    """SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()
