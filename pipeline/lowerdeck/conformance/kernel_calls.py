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


_NEAREST = 0.75
"""Steps between a kernel's integer and the real number that it stands for, from which on the kernel has not rounded to
the nearest: right ones are at most 0.54 away, of 600,000 elements in the calls of 30 random networks."""
_SHARE_FARTHER = 1e-3
"""Share of elements that may be that far away."""
_BOUNDS = tuple(f"aten.{name}.default" for name in ("relu", "hardtanh", "clamp"))
"""Operators that a kernel computes together with the one before, whose result it does not round."""
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
    compared = [node for each in computed.values() for node in each]
    quantized = [node.all_input_nodes[0].name for each in compared if (node := _quantize_of(each))]
    wanted = {node.name for node in compared}.union(quantized, *partitions)
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
        _telling(
            output_error(node.name, [(value, actual)], scale, depth, precision=OF_INTEGERS), node, expected, actual
        )
        for node in possible
        if ((value := expected[node.name]).dtype, value.shape) == (actual.dtype, actual.shape)
        for scale in [scale_of(node)]
    ]
    return min(errors, key=lambda error: error.excess, default=None)


def _telling(error: OutputError, node: Node, expected: Values, actual: torch.Tensor) -> OutputError:
    """`error`, with a bound that a result exceeds which is not what the node's real numbers are rounded to.

    Integers that differ by a step from one another, as those of a flat softmax, are a step off at most in any order.
    """
    quantize = _quantize_of(node)
    if quantize is None or (exact := _exact(quantize, expected)) is None:
        return error
    scale, zero_point = _scale_and_zero_point(quantize)
    steps = actual.double() - zero_point if quantize is node else actual.double() / scale
    farther = int(((steps - exact).abs() > _NEAREST).sum())
    is_other = farther > max(1.0, _SHARE_FARTHER * actual.numel())
    return replace(error, bound=min(error.bound, _NEAREST)) if is_other else error


def _exact(quantize: Node, expected: Values) -> torch.Tensor | None:
    """What is quantized, in steps, within its range; None where a kernel may round in between, too."""
    (source,) = quantize.all_input_nodes
    inputs = [each for each in source.all_input_nodes if each.op == "call_function"]
    is_rounded = operator_name(source) not in _BOUNDS and not all(map(_is_dequantize, inputs))
    if is_rounded or source.name not in expected:
        return None
    scale, zero_point = _scale_and_zero_point(quantize)
    smallest, largest = (int(each) - zero_point for each in quantize.args[3:5])  # type: ignore[arg-type]
    return expected[source.name].double().div(scale).clamp(smallest, largest)


def _scale_and_zero_point(quantize: Node) -> tuple[float, int]:
    return float(quantize.args[1]), int(quantize.args[2])  # type: ignore[arg-type]


def _quantize_of(node: Node) -> Node | None:
    """`node`, or what it dequantizes, if that is quantized with a single scale."""
    found = node.all_input_nodes[0] if _is_dequantize(node) else node
    is_quantize = found.op == "call_function" and operator_name(found).endswith(".quantize_per_tensor.default")
    return found if is_quantize else None


def _is_dequantize(node: Node) -> bool:
    return node.op == "call_function" and operator_name(node).startswith(DEQUANTIZE)
