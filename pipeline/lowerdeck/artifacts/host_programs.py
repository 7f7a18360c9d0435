"""The converted program, ready to be executed on this host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import require_file

if TYPE_CHECKING:
    from lowerdeck.runtime.floats import FloatProgram
    from lowerdeck.runtime.loading import Resolver


def open_converted_program(resolver: Resolver) -> FloatProgram:
    """The converted program with its host twins, ready to be executed on float32 samples."""
    from lowerdeck.runtime.loading import open_float_program

    return open_float_program(
        require_file(paths.PROGRAM),
        manifest=require_file(paths.MANIFEST),
        twins=paths.TWINS,
        resolver=resolver,
        is_own_build=True,
    )
