"""Whether a runtime can execute a program, decided before it is sent there."""

from __future__ import annotations

from collections.abc import Iterator

from lowerdeck.contracts.errors import ProgramError
from lowerdeck.contracts.runtime_images import (
    KERNEL_DEFINITIONS,
    SINGLE_ROUNDING,
    Requirements,
    RuntimeImage,
    definitions_for,
)

_WAYS_OUT = {
    SINGLE_ROUNDING: {
        "with": "its kernels round twice: build firmware with it, or the program with target.device.rounding: double",
        "without": "its kernels round once: build the program with target.device.rounding: single",
    }
}
"""Compile definition -> what it means that a program needs kernels `with` or `without` it, and what to change."""


def unmet(required: Requirements, image: RuntimeImage) -> list[str]:
    """What the runtime lacks for the program, one line each; empty where it can execute it."""
    return list(_unmet(required, image))


def check_runtime(required: Requirements, image: RuntimeImage) -> None:
    """Raise ProgramError, with everything that is missing, unless the runtime can execute the program."""
    if lacking := unmet(required, image):
        listed = "\n  ".join(lacking)
        raise ProgramError(
            f"the runtime {image.name} {image.version} cannot execute this program:\n  {listed}\n"
            "Lower it for that runtime (other target, or operators kept as they are), or execute it on a device with a "
            "newer runtime"
        )


def _unmet(required: Requirements, image: RuntimeImage) -> Iterator[str]:
    if required.schema_identifier not in image.schema_identifiers:
        yield f"schema {required.schema_identifier}; it reads {', '.join(image.schema_identifiers)}"
    for backend, partitions in sorted(required.delegates.items()):
        if backend not in image.delegates:
            has = ", ".join(image.delegates) or "none"
            yield f"delegate {backend} ({partitions} partition{'s'[: partitions > 1]}); it has {has}"
    for use in required.operators:
        if use.name not in image.operators:
            yield f"operator {use.name} ({', '.join(use.dtypes) or 'no tensors'})"
        elif (expected := image.operators[use.name]) not in (None, use.num_args):
            yield f"operator {use.name} with {use.num_args} arguments; its kernel expects {expected}"
    yield from _other_kernels(required, image)
    if image.max_program_bytes is not None and required.program_bytes > image.max_program_bytes:
        yield f"room for {required.program_bytes:,} bytes of program; it has {image.max_program_bytes:,}"
    needed, room = sum(required.planned_bytes) + required.input_bytes, image.memory_bytes.get("method")
    if room is not None and needed > room:
        yield f"{needed:,} bytes for planned memory and inputs; it has {room:,} for all that a method needs"


def _other_kernels(required: Requirements, image: RuntimeImage) -> Iterator[str]:
    for name in definitions_for((use.name for use in required.operators), list(KERNEL_DEFINITIONS)):
        if (name in required.kernel_definitions) != (name in image.kernel_definitions):
            wanted = "with" if name in required.kernel_definitions else "without"
            yield f"kernels built {wanted} {name}; {_WAYS_OUT[name][wanted]}"
