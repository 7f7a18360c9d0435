"""model_config.h: constants of a build, and the sizes of its memory pools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lowerdeck.contracts.runtime_images import KERNEL_DEFINITIONS, definitions_for
from lowerdeck.firmware.c_literals import c_string, definitions
from lowerdeck.firmware.source_part import SourcePart

_POOL_MARGIN = 1.1
"""The method allocator's estimate is rounded up by this factor, and by these bytes for each delegate."""
_DELEGATE_BYTES = 512
_KERNEL_SCRATCH_BYTES = 4096
"""Room for what kernels on the CPU take from the temporary allocator."""
_TOLERATED_STEPS = {"XnnpackBackend": 0}
"""Largest difference from the test vector, in steps, for which the application says `passed`."""


def model_config(metadata: Mapping[str, Any], num_classes: int, parts: Sequence[SourcePart]) -> str:
    """The header.

    Args:
        metadata: metadata.json without the hashes of the files.
        num_classes: Number of names of classes.
        parts: Sources with constants of their own.
    """
    constants = [*_constants(metadata), ("LOWERDECK_NUM_CLASSES", str(num_classes))]
    lines = ["/* Constants of this build. Generated. */", "#ifndef LOWERDECK_MODEL_CONFIG_H"]
    lines += ["#define LOWERDECK_MODEL_CONFIG_H", "", "#include <stdint.h>", ""]
    lines += definitions([*constants, *(constant for part in parts for constant in part.constants)])
    lines += ["", *_kernel_checks(metadata["requirements"]), *_pools(metadata)]
    return "\n".join([*lines, "", "#endif", ""])


def _constants(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    program, header = metadata["program"], metadata["program"]["header"]
    yield "LOWERDECK_PROGRAM_SHA256", f'"{program["sha256"]}"'
    # Beside src/, whose folder is in no list of places for headers: the name may be that of a system header.
    yield "LOWERDECK_PROGRAM_HEADER", f'"../{header["file"]}"'
    yield "LOWERDECK_PROGRAM", header["array_name"]
    yield "LOWERDECK_PROGRAM_BYTES", header["size_macro"]
    yield "LOWERDECK_METHOD", f'"{program["method"]}"'
    yield "LOWERDECK_TARGET", c_string(metadata["target"]["name"])
    for option in ("system_config", "memory_mode"):
        if value := metadata["target"]["options"].get(option):
            yield f"LOWERDECK_{option.upper()}", c_string(str(value))
    yield "LOWERDECK_NUM_INPUTS", str(len(metadata["inputs"]))
    yield "LOWERDECK_NUM_OUTPUTS", str(len(metadata["outputs"]))


def _kernel_checks(required: Mapping[str, Any]) -> Iterator[str]:
    """Directives that end the compilation where kernels would compute something else than the program was checked for.

    They see how this application is compiled: CMakeLists.txt compiles kernels with the same definitions.
    """
    for name in definitions_for((use["name"] for use in required["operators"]), list(KERNEL_DEFINITIONS)):
        is_needed = name in required["kernel_definitions"]
        yield f"#if{'n' if is_needed else ''}def {name}"
        yield f'#error "this program was checked for kernels built {"with" if is_needed else "without"} {name}"'
        yield "#endif"
        yield ""


def _pools(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Sizes of the memory pools; those that are estimates may be set on the compiler's command line."""
    memory, delegates = metadata["memory"], len(metadata["delegates"])
    arenas = list(memory["planned_bytes"].values()) or [16]
    yield f"#define LOWERDECK_ARENA_BYTES {{{', '.join(f'{size}u' for size in arenas)}}}"
    yield f"#define LOWERDECK_PLANNED_POOL_BYTES {max(16, sum(map(_aligned, arenas)))}u"
    inputs = (metadata["test_vector"]["tensors"][f"input_{index}"]["bytes"] for index in range(len(metadata["inputs"])))
    yield f"#define LOWERDECK_INPUT_POOL_BYTES {max(16, sum(map(_aligned, inputs)))}u"
    yield "#ifndef LOWERDECK_METHOD_POOL_BYTES"
    yield "#if UINTPTR_MAX > 0xFFFFFFFFu"
    yield f"#define LOWERDECK_METHOD_POOL_BYTES {method_pool_bytes(memory, delegates, '64_bit')}u"
    yield "#else"
    yield f"#define LOWERDECK_METHOD_POOL_BYTES {method_pool_bytes(memory, delegates, '32_bit')}u"
    yield "#endif"
    yield "#endif"
    yield "#ifndef LOWERDECK_TEMPORARY_POOL_BYTES"
    yield f"#define LOWERDECK_TEMPORARY_POOL_BYTES {temporary_pool_bytes(memory)}u"
    yield "#endif"
    steps = max((_TOLERATED_STEPS.get(name, 1) for name in metadata["delegates"]), default=1)
    yield "#ifndef LOWERDECK_TOLERATED_STEPS"
    yield f"#define LOWERDECK_TOLERATED_STEPS {steps}u"
    yield "#endif"


def method_pool_bytes(memory: Mapping[str, Any], num_delegates: int, bits: str) -> int:
    """Size of the method allocator's pool: the estimate with room for its error and for delegates."""
    return _aligned(int(memory["method_allocator_bytes"][bits] * _POOL_MARGIN) + num_delegates * _DELEGATE_BYTES)


def temporary_pool_bytes(memory: Mapping[str, Any]) -> int:
    """Size of the temporary allocator's pool: the largest partition's scratch, and room for kernels."""
    return _aligned((memory["scratch_bytes"]["largest"] or 0) + _KERNEL_SCRATCH_BYTES)


def _aligned(size: int) -> int:
    return -(-size // 16) * 16
