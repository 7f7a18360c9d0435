"""Step firmware: the converted program -> all that its use in firmware needs, as files by name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.firmware import memory
from pipeline.firmware.header import Placement, c_header
from pipeline.firmware.operators import selected_operators
from pipeline.firmware.readme import readme
from pipeline.firmware.vector import TestVector, bundled_program
from pipeline.runtime.pte import Method, read_pte

FORMAT = "lowerdeck-firmware/1"
METADATA, KERNEL_SELECTION, OPERATORS = "metadata.json", "kernel_selection.c", "selected_operators.yaml"
PROGRAM, BUNDLED_PROGRAM, README = "program.pte", "program.bpte", "README.md"
RANDOM_CAVEAT = "the sample of the test vector is random: it shows that the program runs, and its result means nothing"


@dataclass(frozen=True, kw_only=True)
class Target:
    """What the program is for, as the configuration has it."""

    name: str
    backend: str
    device: Mapping[str, Any]
    options: Mapping[str, Any]


def bundle(
    program: bytes,
    manifest: Mapping[str, Any],
    vector: TestVector,
    target: Target,
    placement: Placement,
    data_files: Mapping[str, bytes] | None = None,
    kernel_selection: bytes | None = None,
    structural: bool = False,
) -> dict[str, bytes]:
    """The files of the bundle; equal arguments give equal bytes.

    Args:
        program: The `.pte`.
        manifest: What convert wrote about it.
        vector: Inputs, and what the program answered on this host.
        target: What it is for.
        placement: Where the array of the C header goes.
        data_files: Content that the program reads from beside it, by file name.
        kernel_selection: C source that names the kernels of the NPU to link, where the converter wrote one.
        structural: Whether the vector's sample is random.
    """
    methods = read_pte(program)
    files = {PROGRAM: program, BUNDLED_PROGRAM: bundled_program(program, vector), **vector.files()}
    files[OPERATORS] = selected_operators(program)
    files |= data_files or {}
    if kernel_selection is not None:
        files[KERNEL_SELECTION] = kernel_selection
    caveats = [manifest["converter"]["caveat"]] if manifest["converter"]["caveat"] else []
    caveats += [RANDOM_CAVEAT] if structural else []
    notes = [
        *caveats,
        f"{target.name}, {len(program):,} bytes, sha256 {hashlib.sha256(program).hexdigest()}",
        "Include it in one source file; README.md says how it is used.",
    ]
    files[placement.file_name] = c_header(program, placement, notes).encode()
    forward = next(method for method in methods if method.name == "forward")
    metadata = {
        "format": FORMAT,
        "caveats": caveats,
        "runs_on_target": not manifest["converter"]["host_only"],
        "target": {"name": target.name, "backend": target.backend, "device": target.device, "options": target.options},
        "converter": manifest["converter"],
        "versions": manifest["versions"],
        "program": {
            "bytes": len(program),
            "sha256": hashlib.sha256(program).hexdigest(),
            "method": forward.name,
            "constant_methods": [method.name for method in methods if method is not forward],
            "header": {
                "file": placement.file_name,
                "array_name": placement.array_name,
                "size_macro": placement.size_macro,
                "alignment_bytes": placement.alignment_bytes,
                "section": placement.section,
            },
        },
        "inputs": manifest["inputs"],
        "outputs": [
            tensor | {"step": step} for tensor, step in zip(manifest["outputs"], manifest["output_steps"], strict=True)
        ],
        "data_files": sorted(data_files or {}),
        "operators": list(forward.operators),
        "delegates": [delegate.backend for delegate in forward.delegates],
        "memory": _memory(forward, manifest),
        "compiler_estimates": manifest["estimates"],
        "kernel_selection": KERNEL_SELECTION if kernel_selection is not None else None,
        "test_vector": _test_vector(vector, files),
    }
    files[README] = readme(metadata).encode()
    metadata["files"] = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())}
    files[METADATA] = (json.dumps(metadata, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()
    return dict(sorted(files.items()))


def _memory(method: Method, manifest: Mapping[str, Any]) -> dict[str, Any]:
    scratch = [partition["scratch_bytes"] for partition in manifest["partitions"]]
    return {
        "planned_bytes": memory.planned_bytes(method),
        "method_allocator_bytes": {
            "32_bit": memory.method_allocator_bytes(method, 4),
            "64_bit": memory.method_allocator_bytes(method, 8),
            "source": memory.METHOD_ALLOCATOR_SOURCE,
        },
        "scratch_bytes": {
            "partitions": scratch,
            # The temporary allocator is reset after every instruction, and a partition is one.
            "largest": max((size for size in scratch if size is not None), default=None),
            "source": _SCRATCH_SOURCES.get(next((d.backend for d in method.delegates), ""), "the delegate names none"),
        },
    }


_SCRATCH_SOURCES = {
    "NeutronBackend": "the last output of each NeutronGraph that the converter made",
    "EthosUBackend": "the block `scratch_size` of each payload, from Vela",
}


def _test_vector(vector: TestVector, files: Mapping[str, bytes]) -> dict[str, Any]:
    tensors = {
        name: {
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "strides": list(tensor.stride()),
            "bytes": len(files[f"{name}.bin"]),
        }
        for name, tensor in vector.named().items()
    }
    return {
        "tensors": tensors,
        "byte_order": "little",
        "executed_by": vector.executed_by,
        "sample_sha256": vector.sample_sha256,
        "bundled_program": BUNDLED_PROGRAM,
    }


__all__ = ["Placement", "Target", "TestVector", "bundle"]
