"""What a model computes from its parameters and buffers alone is computed once, at export.

Weight norm, spectral norm, standardized and low-rank weights, embeddings of fixed positions. Left in the program, such
a weight is quantized like an activation, and a device without a delegate for it computes it again for every input.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import torch
from executorch.backends.transforms.utils import create_constant_placeholder, delete_constant_placeholder
from torch.export.graph_signature import InputKind

from lowerdeck.graph.masks import constants

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

_MOST_GROWTH = 16
"""Elements of a result for each element that it is computed from; what expands further is left to the program."""

_EYES = (torch.ops.aten.eye.default, torch.ops.aten.eye.m)

_OF_SCHEMES = ("torchao", "quantized_decomposed")
"""Namespaces of operators behind which backends look for weights of few bits."""


def fold_constants(program: ExportedProgram) -> None:
    """Store what an ATen program computes from stored tensors alone; what parameters make is a parameter.

    What depends on nothing that the model stores, such as torch.zeros(n), needs no memory and stays; but not what is
    computed from torch.eye, nor one of booleans: ExecuTorch has no kernel of it. What depends on buffers that the
    program writes stays.
    """
    signature, values = program.graph_signature, constants(program, may_be_trained=True)
    origins: dict[Node, frozenset[Node]] = {}
    for node in values:
        below = (each for source in node.all_input_nodes for each in origins[source])
        origins[node] = frozenset({node} if node.op == "placeholder" or node.target in _EYES else below)
    for node in list(program.graph.nodes):
        if node.target == torch.ops.aten._assert_tensor_metadata.default and node.args[0] in values:
            program.graph.erase_node(node)  # it held when the model was traced
    folded = _folded(program, origins)
    if not folded:
        return
    for node, value in values.items():
        if origins[node]:
            value()  # in order, so that long chains need no recursion
    for node in folded:
        is_parameter = any(each.name in signature.inputs_to_parameters for each in origins[node])
        node.replace_all_uses_with(_stored(program, node, values[node](), is_parameter=is_parameter))
    _drop_unused(program, origins.keys())


def _folded(program: ExportedProgram, origins: Mapping[Node, frozenset[Node]]) -> list[Node]:
    """The constants to store: of those that others compute from, the last that are small enough."""
    folded: list[Node] = []
    of_schemes: set[Node] = set()
    computed: set[Node] = set()
    for node in origins:
        if getattr(node.target, "namespace", None) in _OF_SCHEMES or of_schemes.intersection(node.all_input_nodes):
            of_schemes.add(node)
    for node in reversed(program.graph.nodes):
        if node.op == "placeholder" or node not in origins or _is_delegated(node):
            continue
        if any(user not in origins or user in computed for user in node.users):
            if node in of_schemes or not _is_small(node, origins[node]):
                computed.add(node)
            else:
                folded.append(node)
    return folded


def _is_delegated(node: Node) -> bool:
    """Whether it is an eye of numbers, which delegates make themselves; none makes one of booleans."""
    return node.target in _EYES and node.meta["val"].is_floating_point()


def _is_small(node: Node, origins: frozenset[Node]) -> bool:
    value, count = node.meta["val"], sum(each.meta["val"].numel() for each in origins)
    return isinstance(value, torch.Tensor) and value.numel() <= _MOST_GROWTH * count


def _stored(program: ExportedProgram, node: Node, value: torch.Tensor, *, is_parameter: bool) -> Node:
    graph, is_trained = program.graph, is_parameter and value.is_floating_point()
    kind = InputKind.PARAMETER if is_trained else InputKind.CONSTANT_TENSOR
    # A copy: a view would share its memory with the whole, and files would have all of that.
    own = value.detach().clone(memory_format=torch.contiguous_format)
    with graph.inserting_before(next(each for each in graph.nodes if each.op == "placeholder")):
        made: Node = create_constant_placeholder(program, graph, f"folded_{node.name}", kind, own)
    if is_trained:
        program.state_dict[made.name].requires_grad_()  # as quantization-aware training expects
    return made


def _drop_unused(program: ExportedProgram, values: Collection[Node]) -> None:
    for node in [each for each in reversed(program.graph.nodes) if each in values]:
        if node.users:
            continue
        if node.op == "placeholder":
            delete_constant_placeholder(program, node)
        else:
            program.graph.erase_node(node)
    program.graph_module.recompile()
