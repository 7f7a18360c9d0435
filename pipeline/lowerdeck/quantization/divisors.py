"""Divisors that a model keeps away from zero stay in float: their smallest values would be quantized to zero.

`x / (x.norm() + 1e-5)`, torch.nn.functional.normalize and others would compute 0 / 0 where x is zero, which is not a
number, and every device makes another integer of it. Where a division is a product with a reciprocal, as on Ethos-U,
one such value widens the reciprocal's range so far that all others become zero. Sums that samples had below half a step
are zero as well where only what is added to them stays in float: `x * rsqrt(x.pow(2).sum() + 1e-10)` is 1e5 * x there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torchao.quantization.pt2e import FakeQuantizeBase, FixedQParamsObserver, ObserverBase

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

_aten = torch.ops.aten
_KEEPING_AWAY = (_aten.add.Tensor, _aten.clamp.default, _aten.clamp_min.default, _aten.maximum.default)
_PRODUCTS = (_aten.mul.Tensor, _aten.mul.Scalar)
_RECIPROCALS = (_aten.reciprocal.default, _aten.rsqrt.default)
_SHAPES = (
    _aten.expand.default,
    _aten.expand_as.default,
    _aten.reshape.default,
    _aten.unsqueeze.default,
    _aten.view.default,
)
_BEHIND = (*_SHAPES, _aten.sqrt.default, _aten.clamp.default)  # a clamp without a lower bound
_SUMS = (*_SHAPES, _aten.mean.dim, _aten.sqrt.default, _aten.sum.dim_IntList)
_MAX_STEPS = 12
"""Most nodes, observers among them, between a number that keeps away from zero and the division."""
_IsObserver = Callable[["Node"], bool]
_Seen = tuple["Node", "Node | None"]
"""An observer, and who of its readers is to read what it observes; None for all of them."""


def keep_divisors_in_float(calibrated: GraphModule) -> None:
    """Remove observers around divisors and reciprocals whose smallest values are less than a quantization step.

    So are those of what such a number is added to, where samples had values that would be rounded to zero.

    A divisor's smallest value is the number that keeps it away from zero, also where no sample came near it.
    """
    modules = dict(calibrated.named_modules(remove_duplicate=False))

    def is_observed(node: Node) -> bool:
        return is_observer(node, modules)

    def is_wide(observer: Node, smallest: float = math.inf) -> bool:
        lowest, step = lowest_and_step(modules[str(observer.target)])
        return step > min(smallest, lowest) >= 0

    for node in calibrated.graph.find_nodes(op="call_function", target=_aten.div.Tensor):
        smallest, above, beneath = _above(node, node.args[1], is_observed, calibrated)
        if smallest == math.inf or any(is_wide(observer, smallest) for observer, _ in above):
            _lay_open(above, calibrated)
        _lay_open(_cut(beneath, smallest, is_observed, calibrated), calibrated)
    for operator in _RECIPROCALS:
        for node in calibrated.graph.find_nodes(op="call_function", target=operator):
            if is_constant(node):  # `x / 255`, whose smallest value is 0 because that of x is
                continue
            behind: list[_Seen] = [(observer, None) for observer in _behind(node, is_observed)]
            smallest, above, beneath = _above(node, node.args[0], is_observed, calibrated)
            # Nothing behind is quantized where it is an output, on XNNPACK, or read by what is not quantized.
            is_small = not behind and (smallest == math.inf or any(is_wide(each, smallest) for each, _ in above))
            if is_small or any(is_wide(observer) for observer, _ in behind):
                _lay_open([*behind, *above], calibrated)
            _lay_open(_cut(beneath, smallest, is_observed, calibrated), calibrated)


def is_observer(node: Node, modules: Mapping[str, torch.nn.Module]) -> bool:
    """Whether `node` calls what observes ranges, one of the `modules` by name."""
    return node.op == "call_module" and isinstance(modules[str(node.target)], (ObserverBase, FakeQuantizeBase))


def lowest_and_step(module: torch.nn.Module) -> tuple[float, float]:
    """The smallest value that an observer recorded, and its range by its number of steps.

    Both are 0 where nothing was recorded, as where activations are quantized when the program runs.
    """
    recorded: Any = getattr(module, "activation_post_process", module)
    lowest, highest = (getattr(recorded, name, torch.zeros(0)) for name in ("min_val", "max_val"))
    if lowest.numel() != 1:
        return 0.0, 0.0
    return float(lowest), float(highest) / (recorded.quant_max - recorded.quant_min)


def _above(
    reader: Node, divisor: Any, is_observer: _IsObserver, module: GraphModule
) -> tuple[float, list[_Seen], list[_Seen]]:
    """What keeps the divisor of `reader` away from zero, the observers from there to it and those beneath.

    Without such a number only those from where it is computed whose smallest values are less than a step, such as those
    of a sigmoid. Observers that others read, too, go on rounding what these read.
    """
    smallest, found, passed, node = math.inf, list[_Seen](), list[_Seen](), divisor
    for _ in range(_MAX_STEPS):
        if not isinstance(node, torch.fx.Node):
            break
        if is_observer(node):
            passed.append((node, reader))
        elif (number := number_beside(node, module)) is not None:
            smallest = min(smallest, number)
            sources = with_sources(node.args[1]) if isinstance(node.args[1], torch.fx.Node) else []
            found, passed = [*found, *passed, *((each, None) for each in sources if is_observer(each))], []
        elif smallest == math.inf and node.target is _aten.mul.Tensor:
            return _of_product(node, passed, is_observer, module)
        elif node.target not in _BEHIND and not _is_power(node):
            break
        reader, node = node, node.args[0]
    if smallest < math.inf:
        return smallest, found, passed
    return smallest, [seen for seen in passed if _is_nearly_zero(module.get_submodule(str(seen[0].target)))], []


def _of_product(
    product: Node, passed: list[_Seen], is_observer: _IsObserver, module: GraphModule
) -> tuple[float, list[_Seen], list[_Seen]]:
    """`_above` of a divisor that is a product, as that of two lengths in a cosine, behind which `passed` were found."""
    factors = [_above(product, factor, is_observer, module) for factor in product.args]
    numbers = [number for number, _, _ in factors]
    if math.inf in numbers:
        return math.inf, [seen for seen in passed if _is_nearly_zero(module.get_submodule(str(seen[0].target)))], []
    return (
        math.prod(numbers),
        [*passed, *(seen for _, found, _ in factors for seen in found)],
        [seen for _, _, beneath in factors for seen in beneath],
    )


def _is_nearly_zero(module: torch.nn.Module) -> bool:
    """Whether positive values that an observer recorded, or those of a fixed range, may be less than a step."""
    recorded: Any = getattr(module, "activation_post_process", module)
    if isinstance(recorded, FixedQParamsObserver):
        return bool(recorded.zero_point == recorded.quant_min)
    lowest, step = lowest_and_step(module)
    return step > lowest > 0


def number_beside(node: Node, module: GraphModule) -> float | None:
    """The smallest number that `node` adds to a tensor, or bounds it by from below; None for anything else."""
    if node.target not in _KEEPING_AWAY or node.args[1:2] in [(), (None,)]:
        return None
    number: Any = node.args[1]
    if not isinstance(number, torch.fx.Node):
        return float(number)
    sources = with_sources(number)
    return None if any(source.op == "placeholder" for source in sources) else _value(sources, module)


def _cut(beneath: list[_Seen], smallest: float, is_observer: _IsObserver, module: GraphModule) -> list[_Seen]:
    """Observers whose smallest recorded value would be rounded to zero, and `smallest` as well."""
    found = list[_Seen]()
    for observer, reader in beneath:
        lowest, step = lowest_and_step(module.get_submodule(str(observer.target)))
        if lowest >= 0 and step / 2 > max(smallest, lowest):
            found += [(observer, reader), *((each, None) for each in _within(observer, is_observer))]
    return found


def _within(observer: Node, is_observer: _IsObserver) -> list[Node]:
    """Observers of squares that `observer` sees the sum of, which are less than their own step sooner than it is."""
    found, node = list[torch.fx.Node](), observer
    for _ in range(_MAX_STEPS):
        node = node.all_input_nodes[0]
        if is_observer(node) and len(node.users) == 1:
            found.append(node)
        elif _is_power(node) or node.target is _aten.mul.Tensor:
            return found if _is_power(node) or len(node.all_input_nodes) == 1 else []
        elif node.target not in _SUMS:
            break
    return []


def _value(sources: Collection[Node], module: GraphModule) -> float:
    """The smallest value of a constant; 0 where it is computed of others."""
    filled: list[Any] = [source.args[1] for source in sources if source.target is _aten.full_like.default]
    if filled:
        return float(min(filled))
    stored = [source for source in sources if source.op == "get_attr"]
    if len(stored) != 1:
        return 0.0
    owner, _, name = str(stored[0].target).rpartition(".")
    return float(getattr(module.get_submodule(owner), name).min())


def _behind(node: Node, is_observer: _IsObserver) -> Iterator[Node]:
    """Observers of what `node` computes, also of its copies, other shapes and multiples."""
    for user in node.users:
        if is_observer(user):
            yield user
        if is_observer(user) or user.target in _SHAPES or _is_multiple(user):
            yield from _behind(user, is_observer)


def _is_multiple(node: Node) -> bool:
    """Whether `node` is a product with a number, as in `1 / x`, which PyTorch writes as `x.reciprocal() * 1`."""
    return node.target in _PRODUCTS and sum(not is_constant(each) for each in node.all_input_nodes) == 1


def _is_power(node: Node) -> bool:
    """Whether `node` raises a tensor to a number, or to a constant such as a parameter."""
    is_of_constant = node.target is _aten.pow.Tensor_Tensor and is_constant(node.all_input_nodes[-1])
    return node.target is _aten.pow.Tensor_Scalar or is_of_constant


def is_constant(node: Node) -> bool:
    """Whether `node` depends on no input."""
    return all(source.op != "placeholder" for source in with_sources(node))


def with_sources(node: Node) -> list[Node]:
    """`node`, and all that it is computed of, each once; of what `full_like` reads, only the shape counts."""
    found, pending = dict[torch.fx.Node, None](), [node]
    while pending:
        each = pending.pop()
        if each not in found:
            found[each] = None
            pending += [] if each.target is _aten.full_like.default else each.all_input_nodes
    return list(found)


def _lay_open(seen: Iterable[_Seen], module: GraphModule) -> None:
    """Let the readers read what is observed; observers that nobody else reads are removed."""
    alone = list[torch.fx.Node]()
    for observer, reader in dict.fromkeys(seen):
        if reader is None or set(observer.users) == {reader}:
            alone.append(observer)
        else:
            reader.replace_input_with(observer, observer.all_input_nodes[0])
    remove(alone, module)


def remove(observers: Iterable[Node], module: GraphModule) -> None:
    """Let what reads `observers` read what these observe."""
    for observer in dict.fromkeys(observers):
        observer.replace_all_uses_with(observer.all_input_nodes[0])
        module.graph.erase_node(observer)
    module.recompile()
