"""Object storage through fsspec, with whole objects that are addressed by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, cast

from lowerdeck.contracts.errors import LowerdeckError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "ocilake", "oci", "obs", "tos"})
"""Protocols whose objects need no folders. Creating a folder would create the bucket, even a misspelt one."""


class ObjectStorage:
    """A folder in object storage; errors of fsspec's packages become LowerdeckError."""

    def __init__(self, location: str, filesystem: AbstractFileSystem, root: str) -> None:
        self._location = location
        self._filesystem = cast("Any", filesystem)
        self._root = root.rstrip("/")
        protocols = filesystem.protocol if isinstance(filesystem.protocol, tuple) else (filesystem.protocol,)
        self._has_folders = _BUCKETS.isdisjoint(protocols)

    def read(self, name: str) -> bytes | None:
        """Content of an object; None if it is missing."""
        with self._storage_errors(), suppress(FileNotFoundError):
            return bytes(self._filesystem.cat_file(self._path(name)))
        return None

    def size(self, name: str) -> int | None:
        """Size of an object in bytes; None if it is missing."""
        with self._storage_errors(), suppress(FileNotFoundError):
            self._filesystem.invalidate_cache()  # another machine may have written since
            return int(self._filesystem.info(self._path(name))["size"])
        return None

    def fetch(self, name: str, place: Path) -> bool:
        """Copy an object to `place`; returns False if it is missing."""
        with self._storage_errors(), suppress(FileNotFoundError):
            self._filesystem.get_file(self._path(name), str(place))
            return True
        return False

    def upload(self, source: Path, name: str) -> None:
        """Write the file `source` as an object."""
        with self._storage_errors():
            self._make_folder(name)
            self._filesystem.put_file(str(source), self._path(name))

    def write(self, name: str, content: bytes) -> None:
        """Write `content` as an object."""
        with self._storage_errors():
            self._make_folder(name)
            self._filesystem.pipe_file(self._path(name), content)

    def remove(self, name: str) -> None:
        """Remove an object if that is allowed."""
        with suppress(LowerdeckError), self._storage_errors():
            self._filesystem.rm_file(self._path(name))

    def _make_folder(self, name: str) -> None:
        if self._has_folders:
            self._filesystem.makedirs(self._path(str(PurePosixPath(name).parent)), exist_ok=True)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # each storage has its own exceptions, without a common base class
            raise LowerdeckError(f"the store {self._location} refused: {type(error).__name__}: {error}") from error
