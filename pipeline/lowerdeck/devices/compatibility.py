"""Whether a runtime can execute a program, decided before it is sent there."""

from __future__ import annotations

from collections.abc import Iterator

from lowerdeck.contracts.errors import ProgramError
from lowerdeck.contracts.runtime_images import Requirements, RuntimeImage


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
    if image.max_program_bytes is not None and required.program_bytes > image.max_program_bytes:
        yield f"room for {required.program_bytes:,} bytes of program; it has {image.max_program_bytes:,}"
    needed, room = sum(required.planned_bytes) + required.input_bytes, image.memory_bytes.get("method")
    if room is not None and needed > room:
        yield f"{needed:,} bytes for planned memory and inputs; it has {room:,} for all that a method needs"
