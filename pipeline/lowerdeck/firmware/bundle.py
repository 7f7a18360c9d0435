"""Step firmware: converted program -> files that firmware needs to use it, by name."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lowerdeck.firmware.audio_input import audio_sources
from lowerdeck.firmware.header import Placement, c_header
from lowerdeck.firmware.image_input import image_sources
from lowerdeck.firmware.memory_budget import memory_budget, parts_of
from lowerdeck.firmware.metadata import FORMAT, Target, describe
from lowerdeck.firmware.operators import selected_operators
from lowerdeck.firmware.project import project
from lowerdeck.firmware.readme import failed_readme, readme
from lowerdeck.firmware.sample_format import SampleFormat
from lowerdeck.firmware.source_part import SourcePart
from lowerdeck.firmware.task_output import task_sources

if TYPE_CHECKING:
    from lowerdeck.firmware.vector import TestVector

METADATA, KERNEL_SELECTION, OPERATORS = "metadata.json", "kernel_selection.c", "selected_operators.yaml"
PROGRAM, BUNDLED_PROGRAM, README = "program.pte", "program.bpte", "README.md"


def bundle(
    program: bytes,
    manifest: Mapping[str, Any],
    vector: TestVector,
    target: Target,
    placement: Placement,
    data_files: Mapping[str, bytes] | None = None,
    kernel_selection: bytes | None = None,
    structural: bool = False,
    mismatches: Sequence[str] = (),
    sample: SampleFormat | None = None,
    twins: Mapping[str, bytes] | None = None,
) -> dict[str, bytes]:
    """The files of the bundle, whose bytes depend on the arguments alone.

    Args:
        program: The `.pte`.
        manifest: The manifest that convert wrote.
        vector: Inputs, and the program's outputs on this host.
        target: The target of the program.
        placement: Placement of the array in the C header.
        data_files: Files next to the program that it reads, by name.
        kernel_selection: C source that names the NPU's kernels to link, where the converter wrote one.
        structural: Whether the vector's sample is random.
        mismatches: What the program computes otherwise than the quantized model, one line each.
        sample: The preprocessing of samples and the names of classes.
        twins: The manifest and the host twins by path, so that the bundle runs with `lowerdeck run`.
    """
    from lowerdeck.firmware.vector import bundled_program  # torch, which recording a bundle does without

    sample = sample or SampleFormat()
    said = sample.files()
    metadata = describe(program, manifest, vector, target, placement, structural, mismatches)
    if target.memories:
        budget = memory_budget(parts_of(metadata), target.memories, banked=target.banked_memory_planning)
        metadata["memory_budget"] = {"lines": list(budget.lines()), "metrics": budget.metrics()}
    metadata["data_files"] = sorted(data_files or {})
    metadata["kernel_selection"] = KERNEL_SELECTION if kernel_selection is not None else None
    metadata["sample_format"] = sorted(said)
    metadata["test_vector"]["bundled_program"] = BUNDLED_PROGRAM
    metadata["twins"] = sorted(twins or {})
    parts = source_parts(sample, vector, metadata)
    metadata["optional_sources"] = [{"files": sorted(part.files()), "purpose": part.note} for part in parts]
    own = {
        PROGRAM: program,
        placement.file_name: c_header(program, placement, _notes(metadata)).encode(),
        OPERATORS: selected_operators(program),
        BUNDLED_PROGRAM: bundled_program(program, vector),
    }
    groups = (own, vector.files(), said, data_files or {}, twins or {}, project(metadata, vector, sample, parts))
    files = {name: content for group in groups for name, content in group.items()}
    assert len(files) == sum(map(len, groups)), "a file of the bundle would replace another one"
    if kernel_selection is not None:
        files[KERNEL_SELECTION] = kernel_selection
    files[README] = readme(metadata).encode()
    metadata["files"] = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())}
    files[METADATA] = _json(metadata)
    return dict(sorted(files.items()))


def failed_bundle(target: Target, failure: str) -> dict[str, bytes]:
    """Files in place of a bundle that could not be made, which say why.

    Args:
        target: The target of the program.
        failure: Why there is no bundle.
    """
    metadata = {"format": FORMAT, "target": dataclasses.asdict(target), "failure": failure}
    return {README: failed_readme(target.name, failure).encode(), METADATA: _json(metadata)}


def source_parts(sample: SampleFormat, vector: TestVector, metadata: Mapping[str, Any]) -> list[SourcePart]:
    """The sources that this bundle has and others do not."""
    found = [
        image_sources(sample.preprocessing) if sample.is_image and sample.preprocessing else None,
        audio_sources(vector.front_end.parameters) if vector.front_end is not None else None,
        task_sources(sample.task, sample.task_options, metadata),
    ]
    return [part for part in found if part is not None]


def _json(metadata: Mapping[str, Any]) -> bytes:
    return (json.dumps(metadata, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()


def _notes(metadata: Mapping[str, Any]) -> list[str]:
    """Lines of the header's initial comment."""
    program = metadata["program"]
    return [
        *metadata["caveats"],
        f"{metadata['target']['name']}, {program['bytes']:,} bytes, sha256 {program['sha256']}",
        "Include it in one source file; README.md says how it is used.",
    ]


__all__ = ["Placement", "Target", "TestVector", "bundle"]
