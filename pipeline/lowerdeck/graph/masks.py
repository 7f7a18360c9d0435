"""Masks in front of a softmax: what is to be left out gets a number that int8 and float16 have room for.

Models add or fill in minus infinity, or the smallest float32. A quantization that reaches so far has no steps left for
the scores, and kernels that convert infinity to an integer do not agree on the result.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain, count
from typing import TYPE_CHECKING, Any

import torch
from executorch.backends.transforms.utils import create_constant_placeholder
from torch.export.graph_signature import InputKind
from torch.fx.node import map_arg

from lowerdeck.graph.boolean_numbers import boolean_numbers, expanded, only_number
from lowerdeck.graph.masked_scores import HANDING_ON, MASKED, OPERANDS, SOFTMAX, packet_of
from lowerdeck.graph.retracing import called, replace_by
from lowerdeck.graph.scaled_masks import ALL_ALIKE, NO_FACTOR, least_factor, scale_before_masks

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

_aten = torch.ops.aten
MAY_BE_INFINITE = (
    *(_aten.reciprocal, _aten.div, _aten.log, _aten.log2, _aten.log10, _aten.log1p, _aten.pow, _aten.rsqrt),
    *(_aten.exp, _aten.exp2, _aten.expm1),
)
"""Operators that models mask because of what they make of some places, such as distances of 0."""


def fill_assigned(program: ExportedProgram) -> None:
    """Let `scores[mask] = number` in an ATen program fill the number in; `rename_outputs` comes next.

    Also where a model scatters the scores that it keeps into what is masked, as a mixture of experts does, and where a
    tensor has the number that `where` chooses.
    """
    values = constants(program)
    for node in list(program.graph.nodes):
        if node.target in (_aten.where.self, _aten.masked_fill.Tensor):
            _name_number(node, values)
        if node.target is _aten.mul.Tensor and node not in values:
            _name_factor(node, values)
        is_scattered = node.target in (_aten.scatter.src, _aten.scatter.value) and node.meta["val"].is_floating_point()
        number = only_number(node.args[0], values) if is_scattered else None
        if number is not None and number <= MASKED:
            replace_by(node, partial(_filled_around, number=number))
    for node in program.graph.find_nodes(op="call_function", target=_aten.index_put.default):
        _, indices, value = node.args[:3]
        is_added = (*node.args[3:], *node.kwargs.values()) == (True,)
        if len(indices) == 1 and indices[0].meta["val"].dtype == torch.bool and value in values and not is_added:
            number = values[value]()
            if number.numel() == 1:
                replace_by(node, partial(_filled, number=number.item()))


def _filled(x: torch.Tensor, indices: Sequence[torch.Tensor], *_: Any, number: float) -> torch.Tensor:
    """A mask of rows is one of their elements."""
    (mask,) = indices
    return x.masked_fill(mask[(..., *[None] * (x.ndim - mask.ndim))], number)


def _name_number(node: Node, values: Mapping[Node, Callable[[], Any]]) -> None:
    """Let `node` fill in a number in place of a tensor of this number, if it is one of a mask."""
    # Where the number is, and what it is filled into.
    positions = {(1, 2): _aten.where.ScalarSelf, (2, 1): _aten.where.ScalarOther}
    if node.target is _aten.masked_fill.Tensor:
        positions = {(2, 0): _aten.masked_fill.Scalar}
    for (position, filled), target in positions.items():
        number = only_number(node.args[position], values)
        made, given = (each.meta["val"] for each in (node, node.args[filled]))  # type: ignore[union-attr]
        is_alike = made.is_floating_point() and (made.shape, made.dtype) == (given.shape, given.dtype)
        if number is not None and abs(number) >= -MASKED and is_alike:
            arguments = [*node.args[:position], number, *node.args[position + 1 :]]
            with node.graph.inserting_before(node):
                node.replace_all_uses_with(called(node, target, *arguments))
            node.graph.erase_node(node)
            return


def _name_factor(product: Node, values: Mapping[Node, Callable[[], Any]]) -> None:
    """Let `product` of a mask and a tensor of one number have this number itself, behind the mask."""
    for factor, other in (product.args, product.args[::-1]):
        if not isinstance(factor, torch.fx.Node) or not isinstance(other, torch.fx.Node):
            return
        number, made = only_number(other, values), product.meta["val"]
        sources = [each for each in (factor, other) if each.meta["val"].shape == made.shape]
        if number is not None and number <= MASKED and factor.meta["val"].dtype == made.dtype and sources:
            with product.graph.inserting_before(product):
                product.args = expanded(sources[0], lambda: factor)(), number  # noqa: B023
            return


def _filled_around(
    x: torch.Tensor, dim: int, index: torch.Tensor, kept: torch.Tensor | float, *, number: float
) -> torch.Tensor:
    """`kept` in some places of zeros, and `number` in all others; nothing reads `x`, which has that number."""
    is_kept = torch.zeros(x.shape, dtype=torch.bool).scatter(dim, index, True)
    return torch.zeros(x.shape, dtype=x.dtype).scatter(dim, index, kept).masked_fill(is_kept.logical_not(), number)


def bound_masks(program: ExportedProgram) -> None:
    """Let masks in an ATen program leave out by MASKED, where nothing but a softmax sees the difference.

    A mask that others read, too, as a logarithm or a comparison does, stays theirs; all softmax share one of their own.
    Rows that are masked as a whole get equal weights in place of NaN where the mask is filled in, and where it is added
    the weights that they have without it.
    """
    values = constants(program)
    is_changed = scale_before_masks(program, [node for node in program.graph.nodes if node.target in SOFTMAX], values)
    values = constants(program) if is_changed else values
    if copies := _copied_for_softmax(program.graph, values):
        values = constants(program)
    _, hidden = _seen_by_softmax(program.graph, values.keys())
    for node in hidden:
        bound = _bound_constant if node in values else _bound_numbers
        is_changed |= bound(program, node, values)
    _drop_equal(copies)
    if is_changed:
        program.graph.eliminate_dead_code()
        for node in reversed([each for each in program.graph.nodes if each in values]):
            if node.op == "call_function" and not node.users:  # left because it writes
                program.graph.erase_node(node)


def _seen_by_softmax(graph: torch.fx.Graph, constants: Collection[Node]) -> tuple[list[Node], list[Node]]:
    """Nodes whose values a softmax reads, as they are or as part of others of these; those that nothing else reads."""
    reached: set[Node] = set()
    waiting = [node.args[0] for node in graph.nodes if node.target in SOFTMAX]
    while waiting:
        node = waiting.pop()
        packet = packet_of(node)
        is_known = node in constants or packet in OPERANDS or packet in HANDING_ON
        if not isinstance(node, torch.fx.Node) or node in reached or not is_known:
            continue
        reached.add(node)
        positions: Sequence[int] = (0,) if packet in HANDING_ON else OPERANDS.get(packet, ())
        if node in constants:
            continue
        operands = [node.args[position] for position in positions if position < len(node.args)]
        waiting.extend(each for each in operands if packet is not _aten.mul or each in constants)
    hidden: set[Node] = set()
    for node in reversed(graph.nodes):
        if node in reached and all(user in hidden or user.target in SOFTMAX for user in node.users):
            hidden.add(node)
    return [node for node in graph.nodes if node in reached], [node for node in graph.nodes if node in hidden]


def _copied_for_softmax(graph: torch.fx.Graph, values: Mapping[Node, Callable[[], Any]]) -> dict[Node, Node]:
    """Let softmax read copies of masks, and of what is made of them on the way there, that something else reads, too.

    Returns:
        The copies, in the order of the graph, each with its original.
    """
    reached, hidden = _seen_by_softmax(graph, values.keys())
    of_masks, written = set[torch.fx.Node](), _written(graph)
    for node in reached:
        if node not in written and (_may_leave_out(node, values) or not of_masks.isdisjoint(node.all_input_nodes)):
            of_masks.add(node)
    copies: dict[Node, Node] = {}
    own = set(hidden)
    for node in reversed([each for each in reached if each in of_masks.difference(hidden)]):
        readers = [user for user in node.users if user in own or user.target in SOFTMAX]
        with graph.inserting_before(node.next if node.op != "placeholder" else _first_call(graph)):
            copy = called(node, _aten.alias.default, node) if node in values else graph.node_copy(node)
        for reader in readers:
            reader.replace_input_with(node, copy)
        own.add(copy)
        copies[copy] = node
    return dict(reversed(copies.items()))


def _first_call(graph: torch.fx.Graph) -> Node:
    found: Node = next(each for each in graph.nodes if each.op != "placeholder")
    return found


def _may_leave_out(node: Node, values: Mapping[Node, Callable[[], Any]]) -> bool:
    """Whether it has a number of masks, as far as it is known."""
    if node in values:
        value = values[node]()
        return bool(value.is_floating_point() and (value <= MASKED).any())
    numbers = [node.args[each] for each in OPERANDS.get(packet_of(node), ()) if each < len(node.args)]
    return any(isinstance(each, (int, float)) and each <= MASKED for each in numbers)


def _drop_equal(copies: Mapping[Node, Node]) -> None:
    """Let readers of `copies` that are as their originals read these."""
    for copy, original in copies.items():
        is_alias = copy.args == (original,)
        if copy.users and (is_alias or (copy.args, copy.kwargs) == (original.args, original.kwargs)):
            copy.replace_all_uses_with(original)
            copy.graph.erase_node(copy)


def constants(program: ExportedProgram, *, may_be_trained: bool = False) -> dict[Node, Callable[[], Any]]:
    """The nodes that depend on no input and no state, each with a function that computes its value.

    Args:
        program: An ATen program.
        may_be_trained: Include those that depend on parameters, whose values quantization-aware training changes.
    """
    signature = program.graph_signature
    stored = {**signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
    stored |= signature.inputs_to_parameters if may_be_trained else {}
    state = set(signature.buffers_to_mutate.values())
    targets = ((node, stored.get(node.name)) for node in program.graph.find_nodes(op="placeholder"))
    given = {node: partial(_stored, program, target) for node, target in targets if target and target not in state}
    return computed(program.graph, given)


def computed(graph: torch.fx.Graph, given: Mapping[Node, Callable[[], Any]]) -> dict[Node, Callable[[], Any]]:
    """The nodes that depend on those of `given` alone, or on nothing, each with a function that computes its value.

    Args:
        graph: Of an ATen program, or of a module of one.
        given: Functions that return the values of nodes; those that the graph writes to are no longer known.
    """
    written = _written(graph)
    found: dict[Node, Callable[[], Any]] = {}
    for node in graph.nodes:
        if node in written:
            continue
        if node in given:
            found[node] = given[node]
        elif _is_function(node) and found.keys() >= set(node.all_input_nodes):
            found[node] = cache(partial(_computed, node, found))
    return found


def _is_function(node: Node) -> bool:
    """Whether it calls an operator that returns tensors, always the same, and writes to none."""
    results = node.meta.get("val")
    if not all(
        isinstance(each, torch.Tensor) for each in (results if isinstance(results, (tuple, list)) else [results])
    ):
        return False
    if node.target is operator.getitem:
        return True
    if not isinstance(node.target, torch._ops.OpOverload) or _is_mutable(node):
        return False
    return torch.Tag.nondeterministic_seeded not in node.target.tags


def _is_mutable(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _shares_memory(node: Node) -> bool:
    """Whether its result may be part of its first argument."""
    return any(each.alias_info is not None for each in node.target._schema.returns)  # type: ignore[union-attr]


def _written(graph: torch.fx.Graph) -> set[Node]:
    """The nodes whose values another one writes to, also through views of them, such as state and `mask[0] = 0`."""
    found: set[Node] = set()
    for node in graph.nodes:
        if not _is_mutable(node):
            continue
        waiting = list(node.all_input_nodes)
        while waiting:
            source = waiting.pop()
            found.add(source)
            if isinstance(source.target, torch._ops.OpOverload) and _shares_memory(source):
                waiting.extend(source.all_input_nodes[:1])
    return found


def _stored(program: ExportedProgram, target: str) -> Any:
    return program.state_dict[target] if target in program.state_dict else program.constants[target]


def _computed(node: Node, constants: Mapping[Node, Callable[[], Any]]) -> Any:
    arguments, options = map_arg((node.args, node.kwargs), lambda each: constants[each]())
    return node.target(*arguments, **options)  # type: ignore[operator]


def _bound_numbers(program: ExportedProgram, node: Node, values: Mapping[Node, Callable[[], Any]]) -> bool:
    """Let `node` fill in, add or multiply by MASKED in place of a number of masks; whether it had one."""
    is_changed = False
    most = least_factor(program, node, values) if packet_of(node) is _aten.mul else MASKED
    for position in OPERANDS.get(packet_of(node), ()):
        value = node.args[position] if position < len(node.args) else None
        if isinstance(value, (int, float)) and value <= most and "alpha" not in node.kwargs:
            if packet_of(node) is _aten.mul and NO_FACTOR < value <= ALL_ALIKE:
                _fill_rows(program, node, values)
            node.update_arg(position, type(value)(MASKED))
            is_changed = True
            if node.target == _aten.masked_fill.Scalar and node.args[1] in values:
                _add_mask(program, node, values)
    return is_changed


def _bound_constant(program: ExportedProgram, node: Node, values: Mapping[Node, Callable[[], Any]]) -> bool:
    """Replace a mask that the model stores, or computes from what it stores, by one that it stores."""
    value = values[node]()
    products = [user for user in node.users if packet_of(user) is _aten.mul]
    most = min([MASKED, *(least_factor(program, each, values) for each in products)])
    is_factor = bool(products) or any("alpha" in user.kwargs for user in node.users)
    most = NO_FACTOR if any("alpha" in user.kwargs for user in node.users) else most
    if not value.is_floating_point() or not bool((value <= most).any()):
        return False
    if _says_what_is_likely(value, node):
        moved = value - _largest_masked(value)
        if is_factor or not _is_moved_freely(value, node) or _says_what_is_likely(moved, node):
            return False
        value = moved
    node.replace_all_uses_with(stored_constant(program, f"mask_{node.name}", value.clamp(min=MASKED).contiguous()))
    return True


def _largest_masked(value: torch.Tensor) -> torch.Tensor:
    """Of each row that leaves nothing, as far as it is finite; 0 of others."""
    largest = value.amax(-1, keepdim=True)
    return torch.where((largest <= MASKED) & largest.isfinite(), largest, 0.0)


def _is_moved_freely(value: torch.Tensor, node: Node) -> bool:
    """Whether a softmax does not see that rows move until their largest number is 0, which infinite ones need."""
    if not all(packet_of(user) is _aten.add for user in node.users) or not bool((value <= NO_FACTOR).any()):
        return False
    moved = _read_by_softmax(_largest_masked(value).expand(value.shape), node)
    return all(read is not None and torch.equal(read[0].amax(read[1]), read[0].amin(read[1])) for read in moved)


def _says_what_is_likely(value: torch.Tensor, node: Node) -> bool:
    """Whether a row that a softmax reads leaves nothing, but has different numbers."""
    rows = [read or (value.flatten(), 0) for read in _read_by_softmax(value, node)]
    return any(bool(((each.amax(dim) <= MASKED) & (each.amax(dim) != each.amin(dim))).any()) for each, dim in rows)


def _add_mask(program: ExportedProgram, node: Node, values: Mapping[Node, Callable[[], Any]]) -> None:
    """Add a mask that is the same for all inputs, which all backends do, in place of filling its places.

    One that leaves a row nothing stays: what is added to all of a row does not make them equal. So does one of scores
    that may be infinite: what is added does not change these.
    """
    arguments: Any = node.args
    scores, mask = arguments[:2]
    if _leaves_nothing_somewhere(values[mask](), node) or _may_be_infinite(scores):
        return
    added = torch.zeros(values[mask]().shape).masked_fill(values[mask](), MASKED)
    constant = stored_constant(program, f"added_{node.name}", added.to(scores.meta["val"].dtype))
    with program.graph.inserting_before(node):
        made = program.graph.call_function(_aten.add.Tensor, (scores, constant))
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)


def _fill_rows(program: ExportedProgram, product: Node, values: Mapping[Node, Callable[[], Any]]) -> None:
    """Fill in the number of a mask that may leave out whole rows: their scores weigh the same, as in the model.

    Args:
        program: An ATen program.
        product: Of booleans and the number; others are masks of keys alone, which all backends add.
        values: The constants of the program.
    """
    found, shape = boolean_numbers(program, product.args[0], values), product.meta["val"].shape
    if found is None or found.is_given or len(shape) < 2 or shape[-2] == 1:
        return
    for user in list(product.users):
        scores = next((each for each in user.all_input_nodes if each is not product), product)
        is_sum = user.target == _aten.add.Tensor and not user.kwargs and scores is not product
        if is_sum and scores.meta["val"].shape == user.meta["val"].shape:
            with program.graph.inserting_before(user):
                made = called(user, _aten.masked_fill.Scalar, scores, found.booleans(), MASKED)
            user.replace_all_uses_with(made)
            program.graph.erase_node(user)


def _may_be_infinite(scores: Node) -> bool:
    """Whether they are what an operator returned that makes infinity of some numbers, scaled or ordered otherwise."""
    while packet_of(scores) in (*HANDING_ON, _aten.neg, _aten.mul) and isinstance(scores.args[0], torch.fx.Node):
        scores = scores.args[0]
    divisor = scores.args[1] if packet_of(scores) is _aten.div else scores
    return packet_of(scores) in MAY_BE_INFINITE and isinstance(divisor, torch.fx.Node)


def _leaves_nothing_somewhere(mask: torch.Tensor, filled: Node) -> bool:
    """Whether a softmax reads a row of which the mask leaves nothing, as far as is known."""
    rows = list(_read_by_softmax(torch.zeros(mask.shape).masked_fill(mask, MASKED), filled))
    return any(each is None or bool((each[0] <= MASKED).all(each[1]).any()) for each in rows)


def _read_by_softmax(value: torch.Tensor, source: Node) -> Iterator[tuple[torch.Tensor, int] | None]:
    """What each softmax reads of the value of a node, or of a part of it, and the dimension of its rows.

    The value moves as the scores do on the way there. It ends in None where that is not known.
    """
    moving = {source: value}
    for node in source.graph.nodes:
        for read in [each for each in node.all_input_nodes if each in moving]:
            shape = read.meta["val"].shape
            here = moving[read][(None,) * (len(shape) - moving[read].ndim)]
            if node.target in SOFTMAX:
                yield here, node.args[1]
                continue
            if packet_of(node) in HANDING_ON:
                if not all(isinstance(size, int) for size in shape) or len(node.all_input_nodes) > 1:
                    yield None
                    return
                # Views of what `expand` returns have to copy, and do not.
                here = node.target(here.expand(shape).contiguous(), *node.args[1:], **node.kwargs)
            moving[node] = torch.minimum(moving[node], here) if node in moving else here


def stored_constant(program: ExportedProgram, name: str, value: torch.Tensor) -> Node:
    """A constant of an ATen program: one that has this name and value already, or a new one.

    A number is added to the name if something else has it.
    """
    graph = program.graph
    nodes: dict[str, Node] = {node.name: node for node in graph.nodes}
    taken = nodes.keys() | program.constants.keys() | program.state_dict.keys()
    for unique in chain([name], (f"{name}_{number}" for number in count(1))):
        stored = program.constants.get(unique)
        is_alike = isinstance(stored, torch.Tensor) and stored.dtype == value.dtype and torch.equal(stored, value)
        if is_alike and unique in nodes:
            return nodes[unique]
        if unique not in taken:
            break
    with graph.inserting_before(next(each for each in graph.nodes if each.op == "placeholder")):
        made: Node = create_constant_placeholder(program, graph, unique, InputKind.CONSTANT_TENSOR, value)
    return made
