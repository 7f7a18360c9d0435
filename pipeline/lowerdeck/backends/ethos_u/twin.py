"""Host twin of an Ethos-U partition: the TOSA graph that convert stored."""

from __future__ import annotations

from lowerdeck.runtime.interpreter import StoredTwin, Twin
from lowerdeck.runtime.tosa_twin import TosaTwin

DELEGATE_ID = "EthosUBackend"


def open_twin(payload: bytes | memoryview, stored: StoredTwin, *, resolver: str, num_threads: int) -> Twin:
    """Open the stored twin; the payload contains only device code, and the TOSA reference model has no settings.

    Raises:
        LowerdeckError: there is no twin, or the reference model is not installed.
        ValueError: the graph is damaged.
    """
    return TosaTwin(stored(".tosa"))
