"""The program as an array in a C header, the form that ExecuTorch's runners for microcontrollers use."""

from __future__ import annotations

from dataclasses import dataclass

_BYTES_PER_LINE = 16


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Name and placement of the array, from the configuration's section `firmware`."""

    array_name: str
    alignment_bytes: int
    section: str | None

    @property
    def file_name(self) -> str:
        """Name of the header."""
        return f"{self.array_name}.h"

    @property
    def size_macro(self) -> str:
        """Macro for the number of bytes."""
        return f"{self.array_name.upper()}_SIZE_BYTES"


def c_header(program: bytes, placement: Placement, notes: list[str]) -> str:
    """A header that defines the array, for inclusion in one C99, C11 or C++ source file.

    Args:
        program: The `.pte`.
        placement: Name, alignment and section.
        notes: Lines of its initial comment; they may include free text, so `*/` is broken up.
    """
    name, guard = placement.array_name, f"{placement.array_name.upper()}_H"
    attributes = [f"aligned({placement.alignment_bytes})"]
    if placement.section is not None:
        attributes.insert(0, f'section("{placement.section}")')
    head = "\n".join(f" * {' '.join(note.split()).replace('*/', '* /')}" for note in notes)
    return (
        f"/*\n{head}\n */\n#ifndef {guard}\n#define {guard}\n\n#define {placement.size_macro} {len(program)}u\n\n"
        f"__attribute__(({', '.join(attributes)})) const unsigned char {name}[{placement.size_macro}] = {{\n"
        f"{_rows(program)}\n}};\n\n#endif /* {guard} */\n"
    )


def _rows(program: bytes) -> str:
    """The bytes as hexadecimal numbers, without a loop over the millions of bytes of a program."""
    numbers = f"0x{program.hex(' ').replace(' ', ',0x')},"
    width = len("0x00,") * _BYTES_PER_LINE
    return "\n".join(numbers[start : start + width] for start in range(0, len(numbers), width))
