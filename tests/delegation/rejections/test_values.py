"""lowerdeck.delegation.rejections.values: which values of a condition are shown, by which names, in which form."""

from __future__ import annotations

import ast
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lowerdeck.delegation.rejections.values import UNKNOWN, plain, values_in

NODE = torch.fx.Graph().call_function(torch.ops.aten.addmm.default, (1, 2, 3))
VALUES: dict[str, Any] = {
    "groups": 4,
    "stride": (2, 2),
    "stride[0]": 2,
    "shape": torch.Size([1, 8]),
    "len(shape)": 2,
    "(count := len(shape))": 2,
    "size_of(shape)": 2,
    "LARGEST": 4096,
    "is_constant(groups)": True,
    "conv.groups": 8,
    "conv.LIMIT": 3,
    "conv.inner.groups": 2,
    "conv.meta.get('val')": 5,
    "node": NODE,
    "node.args[1]": 2,
    "torch.float32": torch.float32,
}
"""Parts of the conditions below, and what a check would find there."""


def shown(condition: str) -> dict[str, object]:
    return values_in(ast.parse(condition, mode="eval").body, lambda part: VALUES.get(ast.unparse(part), UNKNOWN))


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("groups == 1", {"groups": 4}),
        ("not groups > LARGEST", {"groups": 4, "LARGEST": 4096}),
        ("conv.groups < conv.LIMIT", {"groups": 8}),
        ("conv.groups != conv.inner.groups", {"groups": 8, "conv.inner.groups": 2}),
        ("conv.groups == conv.groups", {"groups": 8}),
        ("stride[0] != 1 and groups", {"stride[0]": 2, "groups": 4}),
        ("torch.float32 == groups", {"groups": 4}),
        ("(count := len(shape)) > 4", {"count": 2, "shape": [1, 8]}),
        ("len(shape) > 4", {"len(shape)": 2, "shape": [1, 8]}),
        ("size_of(shape) > LARGEST", {"size_of(shape)": 2, "shape": [1, 8], "LARGEST": 4096}),
        ("is_constant(groups)", {"groups": 4}),
        ("all(step == 1 for step in stride)", {"stride": [2, 2]}),
        ("all([step == 1 for step in stride])", {"stride": [2, 2]}),
        ("node.args[1] == 3", {"mat1": 2}),
        ("conv.meta.get('val') is None", {"val": 5}),
        ("(lambda: groups) and 3", {}),
    ],
)
def test_variables_attributes_and_calls_are_shown_and_what_is_always_the_same_is_not(
    condition: str, expected: dict[str, object]
) -> None:
    assert shown(condition) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (1.5, 1.5),
        (math.inf, "inf"),
        (np.int64(3), 3),
        (np.float32("nan"), "nan"),
        (torch.int8, "int8"),
        (NODE, "addmm_default"),
        (torch.zeros(2, 3, dtype=torch.int8), "int8[2, 3]"),
        ((1, (2, torch.int8)), [1, [2, "int8"]]),
        ({"b", "a"}, ["a", "b"]),
        (list(range(16)), list(range(16))),
        (list(range(17)), UNKNOWN),
        ([1, object()], UNKNOWN),
        (SimpleNamespace(_op=torch.ops.aten.add.Tensor), "aten.add.Tensor"),
        (object(), UNKNOWN),
    ],
)
def test_values_become_what_a_plan_can_store(value: object, expected: object) -> None:
    assert plain(value) == expected
