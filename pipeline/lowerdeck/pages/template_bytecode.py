"""Keeps compiled templates beside the modules' own bytecode: compiling them takes a fifth of the time of a report."""

from __future__ import annotations

import hashlib
import importlib.util
import marshal
import sys
from contextlib import suppress
from pathlib import Path

import jinja2
from jinja2.bccache import Bucket

from lowerdeck.artifacts.files import write_bytes

_DIGEST_BYTES = 32


class TemplateBytecode(jinja2.BytecodeCache):
    """Files in the `__pycache__` of `folder`, where Python keeps its own; those that cannot be written are left out."""

    def __init__(self, folder: Path, options: str) -> None:
        """Keep the templates of one environment.

        Args:
            folder: The package with the templates.
            options: All that decides what a template is compiled to, besides its text.
        """
        self.folder = folder
        version = f"{sys.implementation.cache_tag} {jinja2.__version__} {importlib.util.MAGIC_NUMBER.hex()}"
        self.options = f"{version} {options}"

    def get_cache_key(self, name: str, filename: str | None = None) -> str:
        """The template's name, for a file's name."""
        return name.replace("/", "-")

    def load_bytecode(self, bucket: Bucket) -> None:
        """Load the code that was compiled from the same text, if its file is whole."""
        with suppress(OSError):
            content = self._file(bucket).read_bytes()
            code = content[_DIGEST_BYTES:]
            if content[:_DIGEST_BYTES] == self._digest(bucket, code):
                bucket.code = marshal.loads(code)  # noqa: S302  Python executes what is in this folder anyway

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Write the code, unless Python itself is not to write any."""
        if not sys.dont_write_bytecode:
            code = marshal.dumps(bucket.code)
            with suppress(OSError):
                write_bytes(self._file(bucket), self._digest(bucket, code) + code)

    def _file(self, bucket: Bucket) -> Path:
        return Path(importlib.util.cache_from_source(str(self.folder / f"template-{bucket.key}")))

    def _digest(self, bucket: Bucket, code: bytes) -> bytes:
        """Of the code and of what it was compiled from."""
        return hashlib.sha256(f"{self.options} {bucket.checksum} ".encode() + code).digest()
