"""`torch.einsum` as the products that it is: quantizers do not know it, and left all of an attention in float."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lowerdeck.graph.retracing import replace_by

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

_aten = torch.ops.aten


def einsum_as_products(program: ExportedProgram) -> None:
    """Write einsum in an ATen program as PyTorch computes it; `rename_outputs` comes next.

    One whose sizes vary stays: its products would depend on them.
    """
    for node in program.graph.find_nodes(op="call_function", target=_aten.einsum.default):
        arguments: Any = node.args
        equation, operands = arguments[:2]
        if not all(isinstance(size, int) for operand in operands for size in operand.meta["val"].shape):
            continue
        orders = _orders(equation)
        if orders is None or _is_repeated(operands, *orders):
            node.kwargs = {}  # opt_einsum's order of products, which torch.einsum finds itself
            replace_by(node, torch.einsum)
        else:
            _multiply(node, operands, *orders)


def _orders(equation: str) -> tuple[list[int], list[int], list[int]] | None:
    """Orders of dimensions that make a product of matrices of it: of both operands before, and of the result behind.

    None for other equations: `torch.einsum` has one matrix product for them too, among more views.
    """
    given, _, result = equation.replace(" ", "").partition("->")
    left, _, right = given.partition(",")
    if not result or not all(text.isalpha() and len(set(text)) == len(text) for text in (left, right, result)):
        return None
    batch = [label for label in result if label in left and label in right]
    summed = [label for label in left if label in right and label not in result]
    rows, columns = [label for label in left if label not in right], [label for label in right if label not in left]
    product = [*batch, *rows, *columns]
    if [len(summed), len(rows), len(columns)] != [1, 1, 1] or sorted(product) != sorted(result):
        return None
    wanted = [*batch, *rows, *summed], [*batch, *summed, *columns]
    first, second = (
        [text.index(label) for label in labels] for text, labels in zip((left, right), wanted, strict=True)
    )
    return first, second, [product.index(label) for label in result]


def _is_repeated(operands: list[Node], left: list[int], right: list[int], _: list[int]) -> bool:
    """Whether what is summed has a single element in one operand, and several in the other."""
    return bool(operands[0].meta["val"].shape[left[-1]] != operands[1].meta["val"].shape[right[-2]])


def _multiply(node: Node, operands: list[Node], left: list[int], right: list[int], result: list[int]) -> None:
    def permuted(value: Node, order: list[int]) -> Node:
        return value if order == sorted(order) else called(_aten.permute.default, value, order)

    def called(operator: Any, *arguments: Any) -> Node:
        made = node.graph.call_function(operator, arguments)
        values = [each.meta["val"] if isinstance(each, torch.fx.Node) else each for each in arguments]
        with values[0].fake_mode:
            made.meta = {**node.meta, "val": operator(*values)}
        return made

    with node.graph.inserting_before(node):
        product = called(_aten.matmul.default, permuted(operands[0], left), permuted(operands[1], right))
        node.replace_all_uses_with(permuted(product, result))
    node.graph.erase_node(node)
