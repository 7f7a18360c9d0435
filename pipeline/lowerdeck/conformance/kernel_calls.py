"""Compares the kernel calls of a program with the nodes that they compute, each on what the edge program computes.

Errors before a call have no effect on it, so that its own rounding is all that explains a difference, even where
rounding explains any error of the program as a whole. A difference that has no effect on what is computed next is none:
a convolution in front of a hardswish may clamp its result to where the hardswish changes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from lowerdeck.conformance.errors import OF_INTEGERS, output_error
from lowerdeck.conformance.subgraphs import scale_of
from lowerdeck.formats.pte import DelegateCall, JumpFalseCall, KernelCall, Method, TensorSpec
from lowerdeck.formats.pte_requirements import argument_tensors
from lowerdeck.graph.node_values import NodeValues
from lowerdeck.graph.nodes import DEQUANTIZE, QUANTIZE, is_operator, operator_name
from lowerdeck.runtime.interpreter import BoundMethod
from lowerdeck.runtime.operators import resolve

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

    from lowerdeck.conformance.partitions import Inputs, Values
    from lowerdeck.contracts.conformance import OutputError


_FEWEST = 32
"""Steps that all elements of a result together may be off, however alike they are: they may be halfway between two."""
Deviation = tuple[tuple[str, ...], "OutputError"]
"""Names of the nodes that a call computes, and its smallest error."""


def deviating_calls(
    method: Method,
    nodes: Mapping[int, Sequence[str]],
    partitions: Sequence[Sequence[str]],
    edge: ExportedProgram,
    sample: Inputs,
    inputs: Inputs,
    definitions: Sequence[str] = (),
) -> list[Deviation]:
    """Kernel calls whose result is that of none of their nodes; none of a program with control flow, without an order.

    Args:
        method: The method of the `.pte`.
        nodes: Nodes of the edge program by instruction.
        partitions: For each of its delegates, which are not executed, the nodes whose results it returns.
        edge: The edge program before lowering.
        sample: Inputs of the model.
        inputs: The same as the program takes them.
        definitions: Compile definitions of the device's kernels that change what they compute.
    """
    if len(method.chains) != 1 or any(isinstance(each, JumpFalseCall) for each in method.chains[0]):
        return []
    by_name = {node.name: node for node in edge.graph.nodes}
    computed = {
        position: [node for name in names if name in by_name for node in _up_to_quantize(by_name[name])]
        for position, names in nodes.items()
    }
    wanted = {node.name for each in computed.values() for node in each}.union(*partitions)
    expected = NodeValues(edge, wanted)(sample)
    bound = BoundMethod(method, [_NotExecuted()] * len(method.delegates), kernel_definitions=definitions)
    for index, value in zip(method.inputs, inputs, strict=True):
        bound.store(index, value)
    calls = _Calls(method, bound, nodes, computed, expected, definitions)
    results = iter(partitions)
    for position, instruction in enumerate(method.chains[0]):
        if isinstance(instruction, DelegateCall):
            names = next(results)
            calls.blame_for(instruction.args[: -len(names)])
            for index, name in zip(instruction.args[-len(names) :], names, strict=True):
                bound.store(index, expected[name])
            continue
        bound.step(0, position)
        if isinstance(instruction, KernelCall):
            calls.compare(position, instruction)
    return calls.deviations()


class _Calls:
    """Compares one call after the other, and gives the next ones what the edge program computes."""

    def __init__(
        self,
        method: Method,
        bound: BoundMethod,
        nodes: Mapping[int, Sequence[str]],
        computed: Mapping[int, Sequence[Node]],
        expected: Values,
        definitions: Sequence[str],
    ) -> None:
        self._method, self._bound, self._nodes = method, bound, nodes
        self._computed, self._expected, self._definitions = computed, expected, definitions
        # Several calls may compute the same nodes: the last one has the result, e.g. behind a copy into another layout.
        self._last = {
            (*nodes.get(position, ()), self._scalar_type(index)): position
            for position, call in enumerate(method.chains[0])
            if isinstance(call, KernelCall)
            for index in self._written(call)
        }
        self._depth = 1
        self._suspects: dict[int, Deviation] = {}
        """Values of the program that no node has -> the call to blame if that has an effect."""
        self._found: dict[tuple[str, ...], Deviation] = {}

    def compare(self, position: int, call: KernelCall) -> None:
        """Compare what a call has written."""
        kernel, names = self._method.operators[call.operator], tuple(self._nodes.get(position, ()))
        possible = [
            node
            for node in self._computed.get(position, ())
            if node.name in self._expected and _may_compute(kernel, node)
        ]
        self._depth += 1  # of the roundings since a call was compared, and one more
        written = self._written(call)
        read = [index for index, _ in argument_tensors(self._method, call.args) if index not in written]
        suspects = [self._suspects[index] for index in read if index in self._suspects]
        for index in written:
            self._suspects.pop(index, None)
            found = _closest(possible, self._expected, self._bound.output(index), self._depth)
            is_last = self._last[*names, self._scalar_type(index)] == position
            if found is None or (found.excess > 1 and not is_last):
                self._suspects |= dict.fromkeys([index], suspects[-1]) if suspects else {}
            elif found.excess > 1 and not suspects:
                self._suspects[index] = names, found
            else:
                if found.excess > 1:
                    self._found |= {each[0]: each for each in suspects}
                self._bound.store(index, self._expected[found.output])
                self._depth = 1

    def blame_for(self, values: Sequence[int]) -> None:
        """Blame the calls to which `values` owe that no node has them: these leave the kernels."""
        self._found |= {self._suspects[index][0]: self._suspects[index] for index in values if index in self._suspects}

    def deviations(self) -> list[Deviation]:
        """The calls to blame, when all have been compared."""
        self.blame_for(self._method.outputs)
        return list(self._found.values())

    def _written(self, call: KernelCall) -> list[int]:
        outputs = resolve(self._method.operators[call.operator], self._definitions).outputs
        return [index for index, _ in argument_tensors(self._method, tuple(call.args[each] for each in outputs))]

    def _scalar_type(self, index: int) -> int:
        spec = self._method.values[index]
        assert isinstance(spec, TensorSpec), "`_written` finds tensors"
        return spec.scalar_type


class _NotExecuted:
    """In place of a delegate, whose results are those of the edge program."""

    description = "not executed"

    def check(self, arguments: Sequence[TensorSpec]) -> None:
        """Any arguments will do."""

    def __call__(self, arguments: Sequence[torch.Tensor]) -> None:
        """Compute nothing."""


def _up_to_quantize(node: Node) -> list[Node]:
    """`node`, and what only it leads to until its result is quantized: kernels compute this at once."""
    found = [node]
    if operator_name(node).startswith((*QUANTIZE, *DEQUANTIZE)):
        return found
    while not operator_name(found[-1]).startswith(QUANTIZE) and len(found[-1].users) == 1:
        (following,) = found[-1].users
        if following.op != "call_function":
            break
        found.append(following)
    return found if operator_name(found[-1]).startswith(QUANTIZE) else [node]


def _may_compute(kernel: str, node: Node) -> bool:
    """Whether `aten::cat.out` may compute `node`; kernel libraries compute integers, and dequantize them."""
    operator = operator_name(node)
    if kernel.startswith("aten::"):
        return is_operator(operator, kernel.rpartition(".")[0])
    is_copy = not kernel.startswith("cortex_m::")
    return is_copy or not node.meta["val"].is_floating_point() or operator.startswith(DEQUANTIZE)


def _closest(possible: Sequence[Node], expected: Values, actual: torch.Tensor, depth: int) -> OutputError | None:
    """The smallest error relative to one of the values that `actual` may be; None where it can be none of them."""
    errors = [
        _telling(output_error(node.name, [(value, actual)], scale, depth, precision=OF_INTEGERS), value, scale)
        for node in possible
        if ((value := expected[node.name]).dtype, value.shape) == (actual.dtype, actual.shape)
        for scale in [scale_of(node)]
    ]
    return min(errors, key=lambda error: error.excess, default=None)


def _telling(error: OutputError, expected: torch.Tensor, scale: float | None) -> OutputError:
    """`error`, with a bound that a result exceeds which has nothing to do with the expected one.

    Integers that differ by a step from one another, as those of a flat softmax, are a step off at most in any order. In
    another order the mean of the squared errors is twice their variance, and that of a constant is their variance.
    """
    if scale is None or not expected.numel():
        return error
    variance = float((expected.double() / scale).var(correction=0))
    return replace(error, mean_bound=min(error.mean_bound, max(variance, _FEWEST / expected.numel())))
