"""Executes an exported program's graph for several samples at once, with the bits of executing each alone.

Every operator that has a rule runs once for the batch; all others run sample by sample within it. A rule is used only
where it is equal to the bit, which `try_out` finds out by executing operator after operator both ways: a library
orders the sums of a convolution by the shape and the layout of its arguments, and never by their values, so another
order shows in the last bits of some of thousands of sums. Elementwise rules are of operations that IEEE 754 rounds
correctly, so that they cannot differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from lowerdeck.graph.fake_quantization import EQUIVALENTS, attribute
from lowerdeck.runtime.batched_method import UnbatchableError
from lowerdeck.runtime.tensors import same_bits
from lowerdeck.runtime.torch_batch_rules import RULES, BatchTensor, Rule

_ALIGNMENT = 64
"""Bytes to which torch aligns tensors; libraries may order sums by the address of an argument."""

_TRIED_OUT = 4
"""Samples whose sums are compared: another order shows in thousands of sums of each, whatever their values."""


class _PerSample:
    """What an operator returns for each sample: as one tensor [b x sizes], one by one, or in both forms."""

    def __init__(self, *, rows: list[Any] | None = None, batch: Tensor | None = None) -> None:
        self._rows, self._batch, self._stacked = rows, batch, batch is not None

    def rows(self) -> list[Any]:
        """One by one, aligned like new tensors."""
        if self._rows is None:
            assert self._batch is not None
            self._rows = [
                row if row.data_ptr() % _ALIGNMENT == 0 else row.clone(memory_format=torch.preserve_format)
                for row in self._batch.unbind()
            ]
        return self._rows

    def repeated(self, size: int) -> _PerSample:
        """The samples one after the other, from the first again after the last, until they are `size`."""
        return _PerSample(rows=list(islice(cycle(self.rows()), size)))

    def batch(self) -> Tensor | None:
        """As one tensor, in which each sample has the strides that it has alone; None where there is no such tensor."""
        if not self._stacked:
            self._batch, self._stacked = _stacked(self.rows()), True
        return self._batch


def _stacked(rows: Sequence[Any]) -> Tensor | None:
    first = rows[0]
    if not all(
        isinstance(row, Tensor)
        and (row.shape, row.dtype, row.stride()) == (first.shape, first.dtype, first.stride())
        and row.permute(sorted(range(row.dim()), key=row.stride, reverse=True)).is_contiguous()
        for row in rows
    ):
        return None
    batch = torch.empty_strided(
        (len(rows), *first.shape), (first.numel(), *first.stride()), dtype=first.dtype, device=first.device
    )
    for place, row in zip(batch.unbind(), rows, strict=True):
        place.copy_(row)
    return batch


class BatchedGraph:
    """The graph of an ATen program, for batches of one size."""

    def __init__(self, module: GraphModule) -> None:
        """Find out what can be executed at once.

        Raises:
            UnbatchableError: it has control flow, or writes tensors that other operators read.
        """
        self._module = module
        self._targets = {node: _without_writes(node) for node in module.graph.nodes if node.op == "call_function"}
        self._rules = {node: list(RULES.get(target, ())) for node, target in self._targets.items()}
        self._last_uses: dict[Node, list[Node]] = {}
        seen: set[Node] = set()
        for node in reversed(module.graph.nodes):
            self._last_uses[node] = [each for each in node.all_input_nodes if each not in seen]
            seen.update(node.all_input_nodes)

    @property
    def alone(self) -> list[Node]:
        """The operators that run sample by sample."""
        return [node for node, rules in self._rules.items() if not rules]

    def __call__(self, samples: Sequence[Sequence[Tensor]]) -> list[tuple[Tensor, ...]]:
        """All outputs of each sample, whatever the structure in which the module returns them.

        Args:
            samples: Inputs of each sample, as many as the batches that were tried out have.
        """
        return self._run(samples, lambda node, values: self._at_once(node, values, len(samples)))

    def try_out(self, samples: Sequence[Sequence[Tensor]], size: int) -> None:
        """Keep the first rule of every operator that computes the same for a batch as for each sample alone.

        Args:
            samples: Inputs of some samples, of which the first are repeated until they are a batch.
            size: Number of samples in a batch.
        """

        given = samples[: min(size, _TRIED_OUT)]

        def compared(node: Node, values: dict[Node, Any]) -> _PerSample:
            alone = self._one_by_one(node, values, len(given))
            if self._rules[node]:
                batch = {
                    each: values[each].repeated(size) if isinstance(values[each], _PerSample) else values[each]
                    for each in node.all_input_nodes
                }
                wanted = alone.repeated(size).batch()
                equal = (rule for rule in self._rules[node] if _is_same(self._apply(rule, node, batch), wanted))
                self._rules[node] = list(islice(equal, 1))
            return alone

        self._run(given, compared)

    def _run(
        self, samples: Sequence[Sequence[Tensor]], call: Callable[[Node, dict[Node, Any]], Any]
    ) -> list[tuple[Tensor, ...]]:
        inputs = iter(zip(*samples, strict=True))
        values: dict[Node, Any] = {}
        for node in self._module.graph.nodes:
            if node.op == "placeholder":
                values[node] = _PerSample(rows=list(next(inputs)))
            elif node.op == "get_attr":
                values[node] = attribute(self._module, node)
            elif node.op == "output":
                return [tuple(tree_leaves(each)) for each in self._mapped(node.args[0], values, len(samples))]
            elif any(isinstance(values[each], _PerSample) for each in node.all_input_nodes):
                values[node] = call(node, values)
            else:
                args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = self._targets[node](*args, **kwargs)
            for each in self._last_uses[node]:
                del values[each]
        raise AssertionError("every graph has an output")

    def _at_once(self, node: Node, values: dict[Node, Any], count: int) -> _PerSample:
        for rule in self._rules[node]:
            if (found := self._apply(rule, node, values)) is not None:
                return _PerSample(batch=found)
        return self._one_by_one(node, values, count)

    def _apply(self, rule: Rule, node: Node, values: dict[Node, Any]) -> Tensor | None:
        batches = {}
        for each in node.all_input_nodes:
            if isinstance(values[each], _PerSample):
                if (batch := values[each].batch()) is None:
                    return None
                batches[each] = BatchTensor(batch)
        args, kwargs = map_arg((node.args, node.kwargs), lambda each: batches.get(each, values[each]))
        return rule(self._targets[node], args, kwargs)

    def _one_by_one(self, node: Node, values: dict[Node, Any], count: int) -> _PerSample:
        target = self._targets[node]
        arguments = self._mapped((node.args, node.kwargs), values, count)
        return _PerSample(rows=[target(*args, **kwargs) for args, kwargs in arguments])

    def _mapped(self, structure: Any, values: dict[Node, Any], count: int) -> list[Any]:
        """`structure` for each sample, with the values of its nodes."""

        def of(row: int) -> Callable[[Node], Any]:
            return lambda node: values[node].rows()[row] if isinstance(values[node], _PerSample) else values[node]

        return [map_arg(structure, of(row)) for row in range(count)]


def _is_same(found: Tensor | None, wanted: Tensor | None) -> bool:
    """Whether a rule's results are those of the samples alone: every bit, and the layout in memory."""
    return (
        found is not None
        and wanted is not None
        and found.stride()[1:] == wanted.stride()[1:]
        and same_bits(found, wanted)
    )


def bytes_of_largest(module: GraphModule) -> int:
    """Size of the largest tensor that the module computes from its inputs.

    Raises:
        UnbatchableError: a size is dynamic.
    """
    of_samples: set[Node] = set()
    largest = 0
    for node in module.graph.nodes:
        if node.op == "placeholder" or not of_samples.isdisjoint(node.all_input_nodes):
            of_samples.add(node)
            for value in tree_leaves(node.meta.get("val")):
                if isinstance(value, torch.SymInt) or (
                    isinstance(value, Tensor) and not all(isinstance(size, int) for size in value.shape)
                ):
                    raise UnbatchableError("it has tensors of dynamic shape")
                if isinstance(value, Tensor):
                    largest = max(largest, value.numel() * value.element_size())
    return largest


def _without_writes(node: Node) -> Any:
    """The operator of a node, or where it writes its argument, the one that returns a new tensor instead.

    Raises:
        UnbatchableError: others may read what it writes, or it is no operator, e.g. of control flow.
    """
    target: Any = node.target
    if isinstance(target, torch._ops.HigherOrderOperator):
        raise UnbatchableError("it has control flow")
    schema = getattr(target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return target
    name, overload = schema.name.partition("::")[2], schema.overload_name or "default"
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
    written = node.args[0]
    if (
        not isinstance(written, Node)
        or written.op != "call_function"
        or len(written.users) > 1
        or _returns_a_view(written)
        or not name.endswith("_")
        or not hasattr(packet, overload)
    ):
        raise UnbatchableError(f"it writes a tensor in place ({node.name})")
    return getattr(packet, overload)


def _returns_a_view(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return node.target not in EQUIVALENTS.values()
    return any(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns)
