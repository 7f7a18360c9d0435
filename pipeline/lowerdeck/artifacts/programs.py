"""ATen exported programs as `.pt2` files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from lowerdeck.artifacts.files import as_archive, require_file, write_bytes

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def write_program(path: Path, program: ExportedProgram) -> None:
    """Write an ATen exported program; equal programs give equal bytes."""
    from lowerdeck.formats import pt2

    buffer = io.BytesIO()
    pt2.save(program, buffer)
    write_bytes(path, buffer.getvalue())


def read_program(path: Path) -> ExportedProgram:
    """The ATen exported program at `path`."""
    from lowerdeck.formats import pt2

    with as_archive(require_file(path)):
        return pt2.load(path)
