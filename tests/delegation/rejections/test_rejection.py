"""Which condition of a check said no, with checks of every form that the backends' are written in."""

# ruff: noqa: SIM103, RET505  the checks here are written as the backends write theirs

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from lowerdeck.contracts.plan import ReasonCode
from lowerdeck.delegation.rejections.rejection import explain_rejection, explain_rejection_at

LARGEST = 4096


@dataclass
class Arguments:
    """As converters hand around what they read from a node."""

    stride: Sequence[int]
    groups: int = 1
    transposed: bool = False


def with_comment(dilation: Sequence[int]) -> bool:
    if dilation != (1, 1):
        # The kernel knows no dilation.
        return False
    return True


def with_any(stride: Sequence[int]) -> bool:
    steps = [1, *stride]
    if any(step > LARGEST for step in steps):
        return False
    return True


def with_all(dtypes: Sequence[torch.dtype], supported: Sequence[torch.dtype]) -> bool:
    return all(dtype in supported for dtype in dtypes)


def with_helper(arguments: Arguments, height: int) -> bool:
    if arguments.transposed:
        return strides_fit(arguments, height)
    return True


def strides_fit(arguments: Arguments, height: int) -> bool:
    stride_h = arguments.stride[0]
    if stride_h > height or stride_h > 2:
        return False
    return arguments.groups == 1 and height < LARGEST


def with_variables(stride: int, padding: Sequence[int]) -> bool:
    for step in (1, stride):
        small = 1 <= step <= 3
        unpadded = not any(pad > 0 for pad in padding)
        if (not small) and (not unpadded):
            return False
    return True


def with_last_word(size: int) -> bool:
    if size in (2, 4, 8):
        return True
    return False


def with_otherwise(rank: int) -> bool:
    if rank == 4:
        return True
    else:
        return False


def with_walrus(parameters: tuple[float, torch.dtype] | None) -> bool:
    return (found := parameters) is not None and found[1] in (torch.int8, torch.uint8)


def with_quantization(index: int) -> bool:
    return all((found := quantization_of(each)) is not None and found in (1.0, 2.0) for each in [0, index])


def quantization_of(index: int) -> float | None:
    return None if index else 1.0


def with_choice(arguments: Sequence[Any]) -> bool:
    ceil_mode = arguments[4] if len(arguments) >= 5 else False
    if len(arguments) > 9 or ceil_mode:
        return False
    return True


def with_match(mode: str, sides: int) -> bool:
    match mode:
        case "constant":
            return True
        case _:
            if sides > 4:
                return False
    return True


def with_annotation(alpha: float) -> bool:
    scaled: bool = alpha != 1
    return not scaled


def with_either(padding: Sequence[int] | str, height: int) -> bool:
    return padding == "same" if isinstance(padding, str) else padding[0] < height


def with_exception(sizes: Sequence[int]) -> bool:
    try:
        return sizes[0] > 0
    except IndexError:
        return False


def with_sizes(input_shape: torch.Size) -> bool:
    return len(input_shape) == 4


def with_weights(weights_are_static: bool) -> bool:
    return weights_are_static


class Check:
    """A check as a class method, as converters have them."""

    limit = 16

    @classmethod
    def is_supported(cls, windows: int) -> bool:
        return windows <= cls.limit


NO = [
    (with_comment, ([2, 2],), "The kernel knows no dilation: dilation != (1, 1) with dilation=[2, 2]", "constraint"),
    (with_any, ([1, 5000],), "step > LARGEST with step=5000, LARGEST=4096, steps=[1, 1, 5000]", "constraint"),
    (
        with_all,
        ([torch.int8, torch.int16], [torch.int8]),
        "dtype not in supported with dtype=int16, supported=[int8], dtypes=[int8, int16]",
        "dtype",
    ),
    (
        with_helper,
        (Arguments([2], transposed=True), 1),
        "strides_fit: stride_h > height with stride_h=2, height=1",
        "constraint",
    ),
    (with_helper, (Arguments([3], transposed=True), 8), "strides_fit: stride_h > 2 with stride_h=3", "constraint"),
    (
        with_helper,
        (Arguments([1], groups=4, transposed=True), 8),
        "strides_fit: arguments.groups != 1 with groups=4",
        "constraint",
    ),
    (with_variables, (5, [0, 1]), "not (1 <= step <= 3) and pad > 0 with step=5, pad=1, padding=[0, 1]", "constraint"),
    (with_last_word, (3,), "size not in (2, 4, 8) with size=3", "shape"),
    (with_otherwise, (3,), "rank != 4 with rank=3", "shape"),
    (with_walrus, ((0.5, torch.int16),), "found[1] not in (torch.int8, torch.uint8) with found[1]=int16", "dtype"),
    (
        with_quantization,
        (1,),
        "(found := quantization_of(each)) is None with found=None, each=1, index=1",
        "not_quantized",
    ),
    (with_choice, ([0, 0, 0, 0, True],), "ceil_mode with ceil_mode=True", "constraint"),
    (with_match, ("reflect", 6), "sides > 4 with sides=6", "constraint"),
    (with_annotation, (2.0,), "alpha != 1 with alpha=2.0", "constraint"),
    (with_either, ([3, 3], 3), "padding[0] >= height with padding[0]=3, height=3", "constraint"),
    (with_exception, ([],), "with_exception says no", "constraint"),
    (with_sizes, (torch.Size([2, 3]),), "len(input_shape) != 4 with len(input_shape)=2, input_shape=[2, 3]", "shape"),
    (with_weights, (False,), "not (weights_are_static) with weights_are_static=False", "not_constant"),
    (Check.is_supported, (17,), "windows > cls.limit with windows=17, limit=16", "constraint"),
]


@pytest.mark.parametrize(
    ("check", "arguments", "message", "code"), NO, ids=[f"{case[0].__name__}-{case[3]}" for case in NO]
)
def test_the_condition_that_decided_is_named(
    check: Callable[..., bool], arguments: tuple[Any, ...], message: str, code: str
) -> None:
    said = explain_rejection(check, *arguments)
    assert said is not None
    assert said.message == message
    reason = said.reason("A check", ReasonCode.CONSTRAINT)
    assert (reason.code, reason.check, reason.message) == (code, "A check", message)
    for name, value in reason.values.items():
        assert isinstance(value, bool | int | float | str | list | None)
        assert f"{name}=" in message


def test_a_check_that_says_yes_has_no_refusal() -> None:
    assert explain_rejection(with_comment, (1, 1)) is None
    assert explain_rejection(with_helper, Arguments([1], transposed=True), 8) is None


def test_what_is_known_of_a_check_decides_where_its_condition_does_not_tell() -> None:
    said = explain_rejection(with_any, [5000])
    assert said is not None
    assert said.reason("", ReasonCode.TARGET_CONSTRAINT).code is ReasonCode.TARGET_CONSTRAINT
    of_dtypes = explain_rejection(with_all, [torch.int16], [torch.int8])
    assert of_dtypes is not None
    assert of_dtypes.reason("", ReasonCode.TARGET_CONSTRAINT).code is ReasonCode.DTYPE


def test_a_check_that_reports_is_read_where_it_reports() -> None:
    reported = []

    def report(message: str) -> None:
        assert message
        reported.append(explain_rejection_at(sys._getframe(1)))

    def check(kernel: Sequence[int]) -> bool:
        if kernel[0] > 64:
            report(f"the kernel {kernel} is too high")
            return False
        return True

    assert not check([65, 1])
    assert [said.message for said in reported] == ["kernel[0] > 64 with kernel=[65, 1], kernel[0]=65"]


def test_no_profiler_is_left_behind() -> None:
    def profiler(*_: Any) -> None:
        return None

    def broken(size: int) -> bool:
        return 1 // size > 0

    sys.setprofile(profiler)
    try:
        explain_rejection(with_any, [5000])
        with pytest.raises(ZeroDivisionError):
            explain_rejection(broken, 0)
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)


class OddError(Exception):
    """Neither a RuntimeError nor a ValueError."""


class Once:
    """Answers once; explaining asks again."""

    def __init__(self) -> None:
        self.num_calls = 0

    def fits(self) -> bool:
        self.num_calls += 1
        if self.num_calls > 1:
            raise OddError
        return False


def with_state(state: Once) -> bool:
    if not state.fits():
        return False
    return True


def test_a_condition_that_cannot_be_evaluated_again_does_not_end_the_build() -> None:
    found = explain_rejection(with_state, Once())
    assert found is not None
    assert (found.conditions, found.message) == ((), "with_state says no")
