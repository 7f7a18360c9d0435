"""What firmware does before and after the program, as data: the preprocessing of a sample, the classes and the task."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lowerdeck.firmware.c_literals import c_float, c_string

HEADER, JSON = "sample_format.h", "sample_format.json"


@dataclass(frozen=True, kw_only=True)
class SampleFormat:
    """How a stored sample became the model's input, and what the outputs' indices mean."""

    preprocessing: Mapping[str, Any] | None = None
    """Plain values, as the dataset gives them; None where it does not say."""
    class_names: Sequence[str] = ()
    """By index; empty where classes have no names."""
    task: str = "fidelity"
    """What the outputs are for: a module of lowerdeck.tasks, or of a plug-in."""
    task_options: Mapping[str, Any] = field(default_factory=dict)
    """All fields of its options, plain values."""

    @property
    def is_image(self) -> bool:
        """Whether the C function for images applies."""
        return self.preprocessing is not None and self.preprocessing.get("kind") == "image"

    def files(self) -> dict[str, bytes]:
        """A C header and the same as JSON; none where there is nothing to say."""
        if not self.preprocessing and not self.class_names:
            return {}
        values = {"preprocessing": self.preprocessing, "class_names": list(self.class_names)}
        text = json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
        return {HEADER: ("\n".join(self._header()) + "\n").encode(), JSON: text.encode()}

    def _header(self) -> Iterator[str]:
        yield f"/*\n * The preprocessing of a sample; {JSON} has the same values, and those of the build's"
        yield " * configuration are these numbers. The names of the classes are in src/model.c.\n */"
        yield "#ifndef SAMPLE_FORMAT_H\n#define SAMPLE_FORMAT_H\n"
        for name, value in (self.preprocessing or {}).items():
            yield from _definition(f"SAMPLE_{_macro(name)}", value)
        yield "\n#endif /* SAMPLE_FORMAT_H */"


def _definition(name: str, value: Any) -> Iterator[str]:
    """Lines that define a value: a macro, an array, or one definition for each key of a mapping.

    Keys of a mapping that are the same as macros are an array beside that of its values.
    """
    if isinstance(value, Mapping):
        if len({_macro(str(key)) for key in value}) < len(value):
            value = {"names": list(map(str, value)), "values": list(value.values())}
        for key, inner in value.items():
            yield from _definition(f"{name}_{_macro(str(key))}", inner)
    elif isinstance(value, (list, tuple)):
        yield from _array(name, value)
    elif isinstance(value, str):
        yield f"#define {name} {c_string(value)}"
    elif isinstance(value, float):
        yield f"#define {name} {c_float(value)}"
    elif value is not None:
        yield f"#define {name} {int(value)}"


def _array(name: str, values: Sequence[Any]) -> Iterator[str]:
    """Numbers or strings as an array; definitions of their own for others."""
    yield f"#define {name}_COUNT {len(values)}"
    if values and all(isinstance(value, (int, float)) for value in values):
        numbers = ", ".join(map(c_float, values))
        yield f"static const float {name}[{name}_COUNT] = {{{numbers}}};"
    elif values and all(isinstance(value, str) for value in values):
        yield f"static const char *const {name}[{name}_COUNT] = {{{', '.join(map(c_string, values))}}};"
    else:
        for index, value in enumerate(values):
            yield from _definition(f"{name}_{index}", value)


def _macro(name: str) -> str:
    return "".join(character if character.isascii() and character.isalnum() else "_" for character in name).upper()
