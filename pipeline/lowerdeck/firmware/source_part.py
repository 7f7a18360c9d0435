"""C sources that only some bundles have, with the constants of the build that they are compiled with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources


@dataclass(frozen=True, kw_only=True)
class SourcePart:
    """One purpose, e.g. the preprocessing of images."""

    names: Sequence[str]
    """Files of sources/optional, which the bundle has in src/."""
    constants: Sequence[tuple[str, str]]
    """Macros of model_config.h and their values in C."""
    note: str
    """What the README and metadata.json say of it: a sentence."""
    generated: Mapping[str, str] = field(default_factory=dict)
    """Sources made for this build, by name."""

    def files(self) -> dict[str, bytes]:
        """The sources by their path in the bundle."""
        folder = resources.files("lowerdeck.firmware") / "sources" / "optional"
        found = {name: (folder / name).read_bytes() for name in self.names}
        found |= {name: text.encode() for name, text in self.generated.items()}
        return {f"src/{name}": content for name, content in found.items()}
