"""How the inputs and outputs of a LiteRT graph belong to the arguments of a delegate call."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Port:
    """One input or output of a LiteRT graph, bound to an argument of the delegate call."""

    argument: int
    """Position among the arguments."""
    shape: tuple[int, ...]
    """The graph's; it may have more or fewer dimensions of size 1 than the argument."""
    permutation: tuple[int, ...] | None
    """The graph's order of the argument's dimensions; None where they are equal."""
