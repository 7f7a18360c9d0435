"""Results of stages under digests of everything that they depend on, in a folder or in object storage.

    objects/9f/86d0...    contents of files, each once, named by their SHA-256
    entries/2c/26b4...    files of a result: relative path -> SHA-256 and size; written after its objects
    locks/fc/de2b...      held while a result is made
    partial/              incomplete files

A result is visible completely or not at all: complete contents are moved into place, and the entry is written last.
Reading verifies everything: each file is hashed while it is copied, and a mismatch counts as missing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lowerdeck.artifacts.files import beside
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.fingerprints.digests import file_digest
from lowerdeck.sweeps.store.entries import (
    StoredFile,
    entry_content,
    entry_files,
    entry_name,
    is_below,
    object_name,
    sharded,
)
from lowerdeck.sweeps.store.object_storage import ObjectStorage

LEFTOVER_AGE_S = 24 * 3600.0
"""Age at which files in partial/ are removed as leftovers of killed processes; no write takes this long."""
_BLOCK_BYTES = 1 << 20


def _log_to_stderr(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


class ResultStore:
    """Results at one location, opened by `ResultStore.open`. Processes and machines may share it."""

    def __init__(self, location: str, folder: Path, remote: ObjectStorage | None, log: Callable[[str], None]) -> None:
        """See `open`. `folder` contains the store itself, or, with `remote`, this machine's copies."""
        self.location = location
        self._folder = folder
        self._remote = remote
        self._log = log
        self._leftovers_removed = False

    @classmethod
    def open(cls, location: str, log: Callable[[str], None] = _log_to_stderr) -> ResultStore:
        """The store at `location`, which need not exist yet.

        Args:
            location: A path, possibly a shared one, or a URL that fsspec supports: `s3://bucket/folder`, `gs://...`,
                `file:///...`. Files of a store in object storage are cached below `$XDG_CACHE_HOME/lowerdeck/store`
                (`~/.cache` if that is not set).
            log: Gets messages for the user: a damaged result, a lock that is held by another process.

        Raises:
            LowerdeckError: the URL's protocol is unknown, or the package for it is not installed.
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
                f"{location!r} cannot be used as a store: {error}. A path is allowed, or a URL that fsspec supports, "
                "such as s3://bucket/folder"
            ) from error
        if isinstance(filesystem, LocalFileSystem):
            return cls(location, Path(root), None, log)
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lowerdeck" / "store"
        return cls(location, cache, ObjectStorage(location, filesystem, root), log)

    def contains(self, key: str) -> bool:
        """Whether there is a result for `key`; its contents are verified only by `get`."""
        return self.digests(key) is not None

    def digests(self, key: str) -> dict[str, str] | None:
        """SHA-256 by path of the files of a result; None if `contains` is false."""
        files = self._entry(key)
        if files is None or any(self._size(file.sha256) != file.size_bytes for file in files):
            return None
        return {file.path: file.sha256 for file in files}

    def get(self, key: str, folder: Path) -> bool:
        """Copy the result's files to their paths below `folder`; returns False if there is no undamaged result.

        Changing the copies does not affect the store. Existing files are replaced one after the other, once all files
        of the result have been verified.

        Raises:
            LowerdeckError: the store cannot be read, or `folder` cannot be written.
        """
        files = self._entry(key)
        if files is None:
            return False
        with self._storage_errors(f"the result cannot be put into {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            partial = beside(folder / "store")
            partial.mkdir()
            try:
                for number, file in enumerate(files):
                    if not self._fetch(file, partial / str(number)):
                        what = f"{file.path} of {key[:12]} is missing or damaged"
                        self._log(f"the store {self.location}: {what}; it is made again")
                        return False
                for number, file in enumerate(files):
                    place = folder / file.path
                    place.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(partial / str(number), place)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
        return True

    def put(self, key: str, folder: Path, files: Iterable[str | Path], *, linked: bool = False) -> None:
        """Store `files`, paths relative to `folder`, as the result for `key`.

        An existing result is replaced, including damaged contents. Store only results that succeeded: the store does
        not represent failures.

        Args:
            key: SHA-256 of everything that the result depends on.
            folder: Folder of the files.
            files: Files of the result.
            linked: Whether the store may hard-link the files, which avoids copies within one file system. Writing into
                a linked file afterwards, instead of replacing it, damages the result, which then counts as missing.

        Raises:
            LowerdeckError: the store cannot be written, e.g. because the disk is full. A previous result stays, and
                nothing of the new one is visible.
        """
        with self._storage_errors("the result cannot be kept"):
            self._remove_leftovers()
            stored = []
            for path in sorted({Path(path).as_posix() for path in files}):
                assert is_below(path), f"{path} is not below the folder"
                stored.append(self._add(folder / path, path, linked))
            content = entry_content(stored)
            if self._remote is not None:
                self._remote.write(entry_name(key), content)
                return
            with self._partial() as partial:
                partial.write_bytes(content)
                self._move(partial, self._folder / entry_name(key))

    @contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Lock the result for `key` while making it; logs a message while waiting for another process.

        Call `get` before, and again inside: the other process may have made the result meanwhile. The system releases
        the lock when the process ends, even if it is killed.

        In a folder, the lock excludes processes on all machines that share it, if the file system supports locks
        between machines (NFS from version 4). Object storage has no locks: there it excludes processes of one user on
        one machine, and two machines may make the same result at once, with the same bytes.

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
        """Whether a process is making the result for `key`; the answer may be outdated immediately."""
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
        """The files of a result; None if there is none or its entry is damaged."""
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
        """Size of an object in bytes; None if it is missing."""
        if self._remote is not None:
            return self._remote.size(object_name(sha256))
        with self._storage_errors("it cannot be read"), suppress(FileNotFoundError):
            return (self._folder / object_name(sha256)).stat().st_size
        return None

    def _fetch(self, file: StoredFile, place: Path) -> bool:
        """Copy one object to `place`; returns False if it is missing or damaged."""
        stored = self._folder / object_name(file.sha256)
        if _copy(stored, place) == file.sha256:
            return True
        if self._remote is None or not self._remote.fetch(object_name(file.sha256), place):
            return False
        if file_digest(place) != file.sha256:
            self._remote.remove(object_name(file.sha256))  # otherwise put, which compares sizes, would leave it
            return False
        with self._partial() as partial:
            shutil.copyfile(place, partial)
            self._move(partial, stored)
        return True

    def _add(self, source: Path, path: str, linked: bool) -> StoredFile:
        """Store the content of `source`, named by the digest of what was actually copied or linked."""
        with self._partial() as partial:
            linked = linked and _link(source, partial)
            sha256 = file_digest(partial) if linked else _copy(source, partial)
            if sha256 is None:
                raise LowerdeckError(f"{source} is not a file; a result consists of files")
            file = StoredFile(path, sha256, partial.stat().st_size)
            # Replace an existing object too: it may be damaged, and checking would cost as much.
            # A link shares its mode with the source, and so with MLflow's copies, which must stay replaceable.
            self._move(partial, self._folder / object_name(sha256), read_only=not linked)
        if self._remote is not None and self._remote.size(object_name(sha256)) != file.size_bytes:
            self._remote.upload(self._folder / object_name(sha256), object_name(sha256))
        return file

    @contextmanager
    def _partial(self) -> Iterator[Path]:
        """A new file in the folder's file system, removed unless it was moved away."""
        (self._folder / "partial").mkdir(parents=True, exist_ok=True)
        partial = beside(self._folder / "partial" / "file")
        partial.touch(exist_ok=False)
        try:
            yield partial
        finally:
            partial.unlink(missing_ok=True)

    @staticmethod
    def _move(partial: Path, place: Path, *, read_only: bool = True) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        if read_only:
            partial.chmod(partial.stat().st_mode & ~0o222)
        os.replace(partial, place)

    def _remove_leftovers(self) -> None:
        """Remove files of processes that were killed while writing."""
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


def _link(source: Path, place: Path) -> bool:
    """Replace `place` by a hard link to `source`; returns False if that is impossible."""
    if source.is_symlink():
        return False
    place.unlink()
    with suppress(OSError):  # another file system, or one without links: the caller copies
        os.link(source, place)
        return True
    return False


def _copy(source: Path, place: Path) -> str | None:
    """Copy a file and return the SHA-256 of the copied bytes; None if `source` is not a file."""
    digest = hashlib.sha256()
    with suppress(FileNotFoundError, IsADirectoryError), source.open("rb") as content, place.open("wb") as copy:
        while block := content.read(_BLOCK_BYTES):
            digest.update(block)
            copy.write(block)
        return digest.hexdigest()
    return None
