"""Host twin of an Ethos-U partition: the TOSA graph that convert stored."""

from __future__ import annotations

from lowerdeck.runtime.interpreter import StoredTwin, Twin
from lowerdeck.runtime.tosa_twin import TosaTwin

DELEGATE_ID = "EthosUBackend"


def open_twin(payload: bytes | memoryview, stored: StoredTwin, *, resolver: str, num_threads: int) -> Twin:
    """The twin of a payload, which holds device code only; the TOSA reference model has no settings.

    Raises:
        LowerdeckError: there is none, or the reference model is not installed.
        ValueError: the graph is damaged.
    """
    return TosaTwin(stored(".tosa"))
