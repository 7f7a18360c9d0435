"""Memories of a target, as far as a program may use them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

MemoryUse = Literal["program", "planned", "method", "scratch", "inputs"]
"""What firmware keeps for a program: its bytes with their constants, the arenas of planned memory, the method
allocator, the scratch of delegates (temporary allocator), and copies of inputs, where firmware makes any."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """One memory, or the part of it that firmware gives to programs."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    name: Annotated[str, Field(min_length=1)]
    """E.g. `dtcm`, `sram`, `flash`."""
    size_bytes: Annotated[int, Field(gt=0)]
    """All of it."""
    holds: Annotated[list[MemoryUse], Field(min_length=1)] = field(default_factory=list)
    """What it may hold: any of `program`, `planned`, `method`, `scratch`, `inputs`."""
    reserved_bytes: Annotated[int, Field(ge=0)] = 0
    """Bytes that firmware itself takes: code, stack, its own data."""

    @property
    def room_bytes(self) -> int:
        """What is left for programs; negative where firmware alone is too large."""
        return self.size_bytes - self.reserved_bytes
