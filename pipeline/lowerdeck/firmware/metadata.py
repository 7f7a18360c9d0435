"""metadata.json: the facts of a bundle's README in machine-readable form."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lowerdeck.contracts.memories import Memory
from lowerdeck.firmware.header import Placement
from lowerdeck.formats import method_memory as memory
from lowerdeck.formats.pte import Method, read_pte
from lowerdeck.formats.pte_requirements import requirements

if TYPE_CHECKING:
    from lowerdeck.firmware.vector import TestVector

FORMAT = "lowerdeck-firmware/1"
RANDOM_CAVEAT = "the sample of the test vector is random: it shows that the program runs, and its result means nothing"
MISMATCH_CAVEAT = "do not ship this program: it computes something else than the quantized model"
_SCRATCH_SOURCES = {
    "NeutronBackend": "the last output of each NeutronGraph that the converter made",
    "EthosUBackend": "the block `scratch_size` of each payload, from Vela",
}


@dataclass(frozen=True, kw_only=True)
class Target:
    """The target of the program, from the configuration."""

    name: str
    backend: str
    device: Mapping[str, Any]
    options: Mapping[str, Any]
    memories: Sequence[Memory] = ()
    """Memories of the board; empty where they are unknown."""
    banked_memory_planning: bool = False
    """Whether arenas were planned for them, one each."""


def describe(
    program: bytes,
    manifest: Mapping[str, Any],
    vector: TestVector,
    target: Target,
    placement: Placement,
    structural: bool,
    mismatches: Sequence[str],
) -> dict[str, Any]:
    """metadata.json without the hashes of the other files; arguments are those of `bundle`."""
    methods = read_pte(program)
    forward = next(method for method in methods if method.name == "forward")
    converter, outputs = manifest["converter"], zip(manifest["outputs"], manifest["output_scales"], strict=True)
    return {
        "format": FORMAT,
        "caveats": [
            *(f"{MISMATCH_CAVEAT}: {mismatch}" for mismatch in mismatches),
            *(caveat for caveat in (converter["caveat"], RANDOM_CAVEAT if structural else None) if caveat),
        ],
        "mismatches": list(mismatches),
        "runs_on_target": not converter["host_only"],
        "target": dataclasses.asdict(target),
        "converter": converter,
        "versions": manifest["versions"],
        "program": {
            "bytes": len(program),
            "sha256": hashlib.sha256(program).hexdigest(),
            "method": forward.name,
            "constant_methods": [method.name for method in methods if method is not forward],
            "header": _header(placement),
        },
        "inputs": manifest["inputs"],
        "outputs": [tensor | {"step": scale} for tensor, scale in outputs],
        "operators": list(forward.operators),
        "requirements": dataclasses.asdict(
            dataclasses.replace(requirements(program), kernel_definitions=manifest["kernel_definitions"])
        ),
        "delegates": [delegate.backend for delegate in forward.delegates],
        "memory": _memory(forward, manifest),
        "compiler_estimates": manifest["estimates"],
        "test_vector": _test_vector(vector),
        "front_end": dict(vector.front_end.parameters) if vector.front_end is not None else None,
    }


def _header(placement: Placement) -> dict[str, Any]:
    return {
        "file": placement.file_name,
        "array_name": placement.array_name,
        "size_macro": placement.size_macro,
        "alignment_bytes": placement.alignment_bytes,
        "section": placement.section,
    }


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
            # The temporary allocator is reset after every instruction, such as a call of a partition.
            "largest": max((size for size in scratch if size is not None), default=None),
            "source": _SCRATCH_SOURCES.get(next((d.backend for d in method.delegates), ""), "the delegate names none"),
        },
    }


def _test_vector(vector: TestVector) -> dict[str, Any]:
    tensors = {
        name: {
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "strides": list(tensor.stride()),
            "bytes": tensor.numel() * tensor.itemsize,
        }
        for name, tensor in vector.named().items()
    }
    return {
        "tensors": tensors,
        "byte_order": "little",
        "executed_by": vector.executed_by,
        "sample_sha256": vector.sample_sha256,
        **({"first_call_only": True} if vector.keeps_state else {}),
        **({"signal_samples": len(vector.front_end.signal)} if vector.front_end is not None else {}),
    }
