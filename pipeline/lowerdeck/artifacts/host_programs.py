"""The converted program, ready to be executed on this host."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import read_json, require_file

if TYPE_CHECKING:
    from lowerdeck.contracts.lowering import ProgramTensor
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


def opener(resolver: Resolver) -> Callable[[], FloatProgram]:
    """`open_converted_program` for later: that this host cannot open a program is a finding of evaluate."""
    return functools.partial(open_converted_program, resolver)


def read_io() -> tuple[tuple[ProgramTensor, ...], tuple[ProgramTensor, ...], list[float | None]]:
    """Inputs and outputs of the converted program, and the quantization step of each output, None where it has none."""
    from lowerdeck.runtime.twins import read_manifest

    described = read_manifest(require_file(paths.MANIFEST))
    return described.inputs, described.outputs, read_json(paths.MANIFEST)["output_scales"]
