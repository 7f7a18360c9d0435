"""Models that look for NaN behind a softmax, as it has where a mask of minus infinity leaves nothing of a row.

Programs have other numbers there, because masks become finite (`bound_masks`): the mask itself answers.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from lowerdeck.graph.boolean_numbers import expanded, moved, only_number
from lowerdeck.graph.masked_scores import HANDING_ON, SOFTMAX, packet_of
from lowerdeck.graph.masks import constants, stored_constant
from lowerdeck.graph.retracing import arguments_of, called

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch.export import ExportedProgram
    from torch.fx import Node

    _Make = Callable[[], Node]
    _Known = Mapping[Node, Callable[[], Any]]

_aten = torch.ops.aten
_OF_NAN = {_aten.isnan: True, _aten.ne: True} | dict.fromkeys(
    (_aten.isfinite, _aten.isinf, _aten.eq, _aten.lt, _aten.le, _aten.gt, _aten.ge), False
)
"""What questions and comparisons answer to NaN."""


def answer_empty_rows(program: ExportedProgram) -> None:
    """Let a mask in an ATen program say where `isnan`, `nan_to_num` and comparisons find NaN of a softmax.

    `rename_outputs` comes next. Where scores are infinite or NaN by themselves is not known before the program runs.
    """
    known: _Known = {}
    for node in list(program.graph.nodes):
        if node.target not in SOFTMAX or not (asking := list(_asking(node))):
            continue
        known = known or constants(program, may_be_trained=True)
        scores, dim = node.args[:2]
        for question, path in asking:
            with program.graph.inserting_before(question.next):
                places = _left_out(program, scores, known)
                if places is None:
                    continue
                nothing = partial(called, node, _aten.all.dim, expanded(scores, places)(), dim, True)
                _answer(question, path, expanded(node, nothing))


def _asking(node: Node, path: tuple[Node, ...] = ()) -> Iterator[tuple[Node, tuple[Node, ...]]]:
    """What has another answer to NaN in `node`, or in what moves it, each with the operators between."""
    for user in node.users:
        if packet_of(user) in (_aten.nan_to_num, *_OF_NAN):
            yield user, path
        elif packet_of(user) in HANDING_ON and user.args[0] is node and len(user.all_input_nodes) == 1:
            yield from _asking(user, (*path, user))


def _answer(question: Node, path: tuple[Node, ...], nothing: _Make) -> None:
    for node in path:
        nothing = moved(node, nothing)
    packet, operands = packet_of(question), question.args
    if packet is _aten.nan_to_num:
        number = arguments_of(question).get("nan") or 0.0
        made = called(question, _aten.masked_fill.Scalar, operands[0], nothing(), number)
    elif not _OF_NAN[packet]:
        something = called(question, _aten.logical_not.default, nothing())
        is_only_nan = packet is _aten.isfinite or (packet is _aten.eq and operands[0] is operands[1])
        made = something if is_only_nan else called(question, _aten.logical_and.default, question, something)
    else:
        is_only_nan = packet is _aten.isnan or operands[0] is operands[1]
        made = nothing() if is_only_nan else called(question, _aten.logical_or.default, question, nothing())
    question.replace_all_uses_with(made, delete_user_cb=made.__ne__)
    if not question.users:
        question.graph.erase_node(question)


def _left_out(program: ExportedProgram, scores: Any, known: _Known) -> _Make | None:
    """What makes the booleans that say where `scores` are minus infinity by a mask; None if there is none."""
    packet, arguments = packet_of(scores), scores.args
    if scores in known:
        is_left_out = known[scores]() == -math.inf
        made = partial(stored_constant, program, f"left_out_by_{scores.name}", is_left_out)
        return made if bool(is_left_out.any()) else None
    if packet in HANDING_ON and len(scores.all_input_nodes) == 1:
        found = _left_out(program, arguments[0], known)
        return found and moved(scores, found)
    if packet is _aten.add:
        return _any_of(scores, [_left_out(program, each, known) for each in scores.all_input_nodes])
    if packet is _aten.masked_fill:
        filled = [_left_out(program, arguments[0], known)]
        return _any_of(scores, filled + [lambda: arguments[1]] * (only_number(arguments[2], known) == -math.inf))
    if packet is _aten.where and len(arguments) == 3:
        mask, one, other = arguments
        parts: list[_Make | None] = []
        if only_number(one, known) == -math.inf:
            parts.append(lambda: mask)
        if only_number(other, known) == -math.inf:
            parts.append(lambda: called(scores, _aten.logical_not.default, mask))
        return _any_of(scores, parts)
    return None


def _any_of(scores: Node, parts: list[_Make | None]) -> _Make | None:
    makes = [expanded(scores, part) for part in parts if part is not None]
    if len(makes) < 2:
        return next(iter(makes), None)
    return lambda: called(scores, _aten.logical_or.default, *(make() for make in makes))
