"""Everything that is wrong with stored samples, in one message."""

from __future__ import annotations

from collections.abc import Sequence

from lowerdeck.contracts.errors import LowerdeckError

MAX_LISTED = 20
"""Most faults that are listed one by one."""


def raise_faults(where: object, faults: Sequence[str]) -> None:
    """Raise LowerdeckError that lists `faults`, if there are any.

    Args:
        where: The file or folder.
        faults: One line for each, with the row or the name of the file.
    """
    if not faults:
        return
    more = [f"and {len(faults) - MAX_LISTED} more"] if len(faults) > MAX_LISTED else []
    count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    raise LowerdeckError(f"{where} has {count}:\n  " + "\n  ".join([*faults[:MAX_LISTED], *more]))
