"""Results of stages, kept under digests of all that they were made of: in a folder, or in object storage.

    objects/9f/86d0...    contents of files, named by their SHA-256; each is kept once
    entries/2c/26b4...    which files a result has: relative path -> SHA-256 and size; written after its objects
    locks/fc/de2b...      held while a result is made
    partial/              what is being written

A result is seen whole or not at all: contents are moved into place when they are complete, and the entry comes last.
Nothing is believed on reading: every file is hashed while it is copied, and what does not fit counts as missing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.sweep.store.entries import (
    StoredFile,
    entry_content,
    entry_files,
    entry_name,
    is_below,
    object_name,
    sharded,
)
from lowerdeck.sweep.store.object_storage import ObjectStorage

LEFTOVER_AGE_S = 24 * 3600.0
"""After this time, what a killed process left in partial/ is removed; nothing takes so long to be written."""
_BLOCK_BYTES = 1 << 20


def _log_to_stderr(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


class Store:
    """Results at one location; `Store.open` makes it. Processes and machines may share it."""

    def __init__(self, location: str, folder: Path, remote: ObjectStorage | None, log: Callable[[str], None]) -> None:
        """See `open`. `folder` holds the store itself, or with `remote` the copies of this machine."""
        self.location = location
        self._folder = folder
        self._remote = remote
        self._log = log
        self._leftovers_removed = False

    @classmethod
    def open(cls, location: str, log: Callable[[str], None] = _log_to_stderr) -> Store:
        """The store at `location`, which need not exist yet.

        Args:
            location: A path, also a shared one, or a URL that fsspec knows: `s3://bucket/folder`, `gs://...`,
                `file:///...`. Of a store in object storage, this machine keeps what it read and wrote below
                `$XDG_CACHE_HOME/lowerdeck/store` (`~/.cache` where that is not set).
            say: Gets what a person should know: a damaged result, a lock that is held by another process.

        Raises:
            LowerdeckError: the URL's kind is unknown, or the package for it is not installed.
        """
        if "://" not in location:
            return cls(location, Path(location).expanduser().absolute(), None, log)
        import fsspec
        from fsspec.implementations.local import LocalFileSystem

        try:
            filesystem, root = fsspec.url_to_fs(location)
        except ImportError as error:
            raise LowerdeckError(f"the store {location} needs a package that is not installed: {error}") from error
        except ValueError as error:
            raise LowerdeckError(
                f"{location!r} is no place for a store: {error}. A path is allowed, or a URL that fsspec knows, "
                "such as s3://bucket/folder"
            ) from error
        if isinstance(filesystem, LocalFileSystem):
            return cls(location, Path(root), None, log)
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lowerdeck" / "store"
        return cls(location, cache, ObjectStorage(location, filesystem, root), log)

    def contains(self, key: str) -> bool:
        """Whether there is a result for `key`; its contents are only looked at when it is taken out."""
        return self.digests(key) is not None

    def digests(self, key: str) -> dict[str, str] | None:
        """SHA-256 by path of the files that `get` would give; None where `contains` is false."""
        files = self._entry(key)
        if files is None or any(self._size(file.sha256) != file.size_bytes for file in files):
            return None
        return {file.path: file.sha256 for file in files}

    def get(self, key: str, folder: Path) -> bool:
        """Copy the result's files to their places below `folder`; False where there is no sound result.

        They are copies: whatever is done to them leaves the store as it is. Files that are there already are replaced
        once all have been read and found sound, one after the other.

        Raises:
            LowerdeckError: the store cannot be read, or `folder` not be written.
        """
        files = self._entry(key)
        if files is None:
            return False
        with self._storage_errors(f"the result cannot be put into {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(prefix=".store.", dir=folder))
            try:
                for number, file in enumerate(files):
                    if not self._fetch(file, partial / str(number)):
                        self._log(
                            f"the store {self.location} lacks a sound {file.path} of {key[:12]}; it is made again"
                        )
                        return False
                for number, file in enumerate(files):
                    place = folder / file.path
                    place.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(partial / str(number), place)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
        return True

    def put(self, key: str, folder: Path, files: Iterable[str | Path], *, linked: bool = False) -> None:
        """Keep `files`, paths relative to `folder`, as the result for `key`.

        A result that is there already is replaced, and with it contents that were damaged. Only what succeeded belongs
        here: the store has no word for failures.

        Args:
            key: SHA-256 of all that the result was made of.
            folder: Where the files are.
            files: What to keep.
            linked: Whether the files may become names of the store's own contents, which spares copies where both are
                in one file system. Who writes into one afterwards, rather than putting another in its place, damages
                the result: it counts as missing then.

        Raises:
            LowerdeckError: the store cannot be written, e.g. because the disk is full. Nothing of the result is seen
                then, and one that was there before is there still.
        """
        kept = []
        with self._storage_errors("the result cannot be kept"):
            self._remove_leftovers()
            for path in sorted({Path(path).as_posix() for path in files}):
                assert is_below(path), f"{path} is not below the folder"
                kept.append(self._add(folder / path, path, linked))
            content = entry_content(kept)
            if self._remote is None:
                self._write(entry_name(key), content)
            else:
                self._remote.write(entry_name(key), content)

    @contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Keep out all others who want to make the result for `key`; waits for whoever is making it, and says so.

        Look with `get` before, and again inside: the other may have made it meanwhile. The system releases the lock of
        a process that ends, however it ends.

        A store in a folder keeps out processes on all machines that share it, if its file system has locks between
        machines (NFS from version 4). Object storage has none: there, processes of one user on one machine keep each
        other out, and two machines may make the same result at once; both make the same, so that either may stay.

        Raises:
            LowerdeckError: the location cannot be written.
        """
        from filelock import FileLock, Timeout

        path = self._folder / "locks" / sharded(key)
        lock = FileLock(path, timeout=0)
        with self._storage_errors("no lock can be held"):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire()
            except Timeout:
                self._log(f"waiting for another process, which makes {key[:12]} of the store {self.location}")
                lock.acquire(timeout=-1)
        try:
            yield
        finally:
            lock.release()

    def is_locked(self, key: str) -> bool:
        """Whether somebody makes the result for `key` at this moment; by the time that one knows, it may be over."""
        from filelock import FileLock, Timeout

        path = self._folder / "locks" / sharded(key)
        if not path.is_file():
            return False
        try:
            with FileLock(path, timeout=0):
                return False
        except Timeout:
            return True

    def _entry(self, key: str) -> list[StoredFile] | None:
        """The files of a result, None where there is none or its entry is damaged."""
        name = entry_name(key)
        with self._storage_errors("it cannot be read"):
            content = self._remote.read(name) if self._remote is not None else _read(self._folder / name)
        if content is None:
            return None
        try:
            return entry_files(content)
        except ValueError:
            self._log(f"the store {self.location} has a damaged entry for {key[:12]}; it is made again")
            return None

    def _size(self, sha256: str) -> int | None:
        """Size of an object, None where it is missing."""
        if self._remote is not None:
            return self._remote.size(object_name(sha256))
        with self._storage_errors("it cannot be read"), suppress(FileNotFoundError):
            return (self._folder / object_name(sha256)).stat().st_size
        return None

    def _fetch(self, file: StoredFile, place: Path) -> bool:
        """Copy one object to `place`; False where it is missing or damaged."""
        stored = self._folder / object_name(file.sha256)
        if _copy(stored, place) == file.sha256:
            return True
        if self._remote is None or not self._remote.fetch(object_name(file.sha256), place):
            return False
        if _digest(place) != file.sha256:
            self._remote.remove(object_name(file.sha256))  # or put, which compares sizes, would leave it
            return False
        with self._partial() as partial:
            shutil.copyfile(place, partial)
            self._move(partial, stored)
        return True

    def _add(self, source: Path, path: str, linked: bool) -> StoredFile:
        """Keep the content of `source`; what it is named by is what was really copied or linked."""
        with self._partial() as partial:
            linked = linked and _link(source, partial)
            sha256 = _digest(partial) if linked else _copy(source, partial)
            if sha256 is None:
                raise LowerdeckError(f"{source} is no file; a result consists of files")
            file = StoredFile(path, sha256, partial.stat().st_size)
            # Always put into place, also where one is: it may be damaged, and to look costs as much.
            # Of a link, the source would get the rights, and with it MLflow's copies, which have to be replaceable.
            self._move(partial, self._folder / object_name(sha256), read_only=not linked)
        if self._remote is not None and self._remote.size(object_name(sha256)) != file.size_bytes:
            self._remote.upload(self._folder / object_name(sha256), object_name(sha256))
        return file

    def _write(self, name: str, content: bytes) -> None:
        with self._partial() as partial:
            partial.write_bytes(content)
            self._move(partial, self._folder / name)

    @contextmanager
    def _partial(self) -> Iterator[Path]:
        """A new file in the folder's file system, removed where it was not moved away."""
        (self._folder / "partial").mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self._folder / "partial")
        os.close(handle)
        try:
            yield Path(name)
        finally:
            Path(name).unlink(missing_ok=True)

    @staticmethod
    def _move(partial: Path, place: Path, *, read_only: bool = True) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        if read_only:
            partial.chmod(0o444)
        os.replace(partial, place)

    def _remove_leftovers(self) -> None:
        """Remove what processes left that were killed while they wrote."""
        if self._leftovers_removed:
            return
        self._leftovers_removed = True
        for leftover in (self._folder / "partial").glob("*"):
            with suppress(OSError):  # somebody else's file, or removed meanwhile
                if time.time() - leftover.stat().st_mtime > LEFTOVER_AGE_S:
                    leftover.unlink()

    @contextmanager
    def _storage_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = "" if self._remote is None else f" (copies of this machine: {self._folder})"
            raise LowerdeckError(
                f"the store {self.location}{where}: {what}: {error.strerror or error}"
                f"{f': {error.filename}' if error.filename else ''}"
            ) from error


def _read(path: Path) -> bytes | None:
    with suppress(FileNotFoundError, NotADirectoryError):
        return path.read_bytes()
    return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _link(source: Path, place: Path) -> bool:
    """Make `place` another name of the file `source`; False where it cannot be."""
    if source.is_symlink():
        return False
    place.unlink()
    with suppress(OSError):  # another file system, or one without links: a copy does as well
        os.link(source, place)
        return True
    return False


def _copy(source: Path, place: Path) -> str | None:
    """Copy a file and give the SHA-256 of what was copied; None where there is no file `source`."""
    digest = hashlib.sha256()
    with suppress(FileNotFoundError, IsADirectoryError), source.open("rb") as content, place.open("wb") as copy:
        while block := content.read(_BLOCK_BYTES):
            digest.update(block)
            copy.write(block)
        return digest.hexdigest()
    return None
