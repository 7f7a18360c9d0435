"""lowerdeck.runtime.global_settings: threads that use the same settings leave those of the process as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from lowerdeck.runtime.exact.accumulate import exact_kernels
from lowerdeck.runtime.global_settings import for_all_threads


def precision() -> str:
    backends: Any = torch.backends
    return str(backends.mkldnn.conv.fp32_precision)


def test_settings_last_until_the_last_is_outside() -> None:
    before = precision()
    first, second = exact_kernels(), exact_kernels()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    within = precision()
    second.__exit__(None, None, None)
    assert before != "ieee"
    assert (within, precision()) == ("ieee", before)


def test_settings_that_fail_are_made_again_next_time() -> None:
    made: list[int] = []

    @for_all_threads
    @contextmanager
    def settings() -> Iterator[None]:
        made.append(1)
        if len(made) == 1:
            raise ValueError("no")
        yield
        made.append(-1)

    with pytest.raises(ValueError, match="no"), settings():
        raise AssertionError("it is not entered")
    with pytest.raises(KeyError), settings():
        raise KeyError("of the work")
    assert made == [1, 1, -1]
    with settings():
        assert made == [1, 1, -1, 1]
