"""Softmax: every integer as gemmlowp's fixed-point arithmetic in LiteRT's reference kernel computes it."""

from __future__ import annotations

import numpy as np
import pytest

from lowerdeck.runtime.exact.litert import LitertProgram
from lowerdeck.runtime.exact.nodes import UnsupportedGraphError
from tests.runtime.exact.litert_models import Spec, check_equal, model, options


@pytest.mark.parametrize("beta", [1.0, 0.37])
@pytest.mark.parametrize("scale", [0.0007, 0.04, 0.6, 4.0])
@pytest.mark.parametrize("length", [1, 2, 197])
def test_rows(length: int, scale: float, beta: float) -> None:
    shape = (3, length)
    content = model("SOFTMAX", [Spec(shape, [scale], 5)], Spec(shape, [1 / 256], -128), options("Softmax", beta=beta))
    found = check_equal(content, batch=16)
    if length == 197 and scale == 0.04 and beta == 1.0:
        assert len(np.unique(found[0])) > 10


def test_rows_that_overflow_the_sum_are_named() -> None:
    shape = (1, 4096)
    content = model("SOFTMAX", [Spec(shape, [0.1])], Spec(shape, [1 / 256], -128), options("Softmax", beta=1.0))
    with pytest.raises(UnsupportedGraphError, match="rows of 4096 elements"):
        LitertProgram(content)
