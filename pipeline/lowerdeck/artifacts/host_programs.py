"""The converted program, ready to be executed on this host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import read_json, require_file

if TYPE_CHECKING:
    from lowerdeck.contracts.lowering import ProgramTensor
    from lowerdeck.runtime.floats import FloatProgram
    from lowerdeck.runtime.loading import BatchDevice, Resolver


def open_converted_program(resolver: Resolver, batch_device: BatchDevice = "cpu") -> FloatProgram:
    """The converted program with its host twins, ready to be executed on float32 samples; in batches on that device."""
    from lowerdeck.runtime.loading import open_float_program

    return open_float_program(
        require_file(paths.PROGRAM),
        manifest=require_file(paths.MANIFEST),
        twins=paths.TWINS,
        resolver=resolver,
        is_own_build=True,
        batch_device=batch_device,
    )


def kernel_definitions() -> tuple[str, ...]:
    """Compile definitions that kernels of the converted program need."""
    from lowerdeck.runtime.twins import read_manifest

    return read_manifest(require_file(paths.MANIFEST)).kernel_definitions


def read_io() -> tuple[tuple[ProgramTensor, ...], tuple[ProgramTensor, ...], list[float | None], dict[str, list[str]]]:
    """Inputs and outputs of the converted program, the quantization step of each output, None where it has none, and
    nodes of the plan by the index of the instruction that computes them."""
    from lowerdeck.runtime.twins import read_manifest

    described = read_manifest(require_file(paths.MANIFEST))
    manifest = read_json(paths.MANIFEST)
    return described.inputs, described.outputs, manifest["output_scales"], manifest.get("instructions", {})
