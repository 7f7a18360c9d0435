"""Models with state, as PT2E quantizes them: state goes in and out like every other activation.

PT2E takes a buffer for a constant: it would fold the quantization of the first state into the program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from lowerdeck.graph.nodes import DEQUANTIZE
from lowerdeck.graph.state import initial_state
from lowerdeck.graph.unlike_inputs import IS_STATE

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_COPY = torch.ops.aten.copy_.default


def without_buffers(program: ExportedProgram) -> torch.fx.GraphModule:
    """`program` as a module that takes its state after its inputs, and returns the new state after its outputs.

    Without state, inputs and outputs are those of the program. The module shares the program's parameters.
    """
    module = program.module(check_guards=False)  # the Arm passes fail on the guard submodule
    assert isinstance(module, torch.fx.GraphModule)
    state = initial_state(program)
    if not state:
        return module
    graph = module.graph
    buffers = {name: [node for node in graph.find_nodes(op="get_attr") if node.target == name] for name in state}
    written = {str(copy.args[0].target): copy for copy in graph.find_nodes(op="call_function", target=_COPY)}
    new_state = [written[name].args[1] for name in state]
    for copy in written.values():
        copy.replace_all_uses_with(copy.args[1])  # the program may return its state, too
        graph.erase_node(copy)
    last_input = graph.find_nodes(op="placeholder")[-1]
    for number, (name, value) in enumerate(state.items()):
        with graph.inserting_after(last_input):
            last_input = graph.placeholder(f"state_{number}")
        last_input.meta = {key: value for node in buffers[name] for key, value in node.meta.items()}
        last_input.meta.setdefault("val", _placeholder_value(program, name))
        last_input.meta[IS_STATE] = True
        for node in buffers[name]:
            node.replace_all_uses_with(last_input)
            graph.erase_node(node)
    output = graph.output_node()
    results: Any = output.args[0]
    output.args = ((*results, *new_state),)
    graph.set_codegen(torch.fx.graph.CodeGen())  # flat inputs and outputs instead of the program's containers
    module.recompile()
    return module


def with_buffers(module: torch.fx.GraphModule, program: ExportedProgram) -> torch.fx.GraphModule:
    """Undo `without_buffers` in a module that was made from it, with the initial state of `program`."""
    state = initial_state(program)
    if not state:
        return module
    graph, output = module.graph, module.graph.output_node()
    returned: Any = output.args[0]
    results = list(returned)
    placeholders = graph.find_nodes(op="placeholder")[-len(state) :]
    output.args = (tuple(results[: -len(state)]),)
    for number, (node, result) in enumerate(zip(placeholders, results[-len(state) :], strict=True)):
        name = f"_state_{number}"
        module.register_buffer(name, list(state.values())[number].detach().clone())
        with graph.inserting_before(node):
            buffer = graph.get_attr(name)
        buffer.meta = dict(node.meta)
        node.replace_all_uses_with(buffer)
        graph.erase_node(node)
        with graph.inserting_before(output):
            value, shape = _of_its_own(result), list(module.get_buffer(name).shape)
            if not shape and _rank(result):  # Arm's passes give scalars a dimension
                value = graph.call_function(torch.ops.aten.reshape.default, (value, shape))
            graph.call_function(_COPY, (buffer, value))
    module.recompile()
    return module


def stream(module: Callable[..., Any], program: ExportedProgram) -> Callable[..., Any]:
    """A module made by `without_buffers` that takes the inputs of `program` alone and keeps the state between calls.

    Args:
        module: The module.
        program: The program it was made from; the first call starts with its initial state.
    """
    state = [value.clone() for value in initial_state(program).values()]
    if not state:
        return module

    def call(*inputs: torch.Tensor) -> Any:
        outputs = module(*inputs, *state)
        state[:] = [value.detach() for value in outputs[-len(state) :]]
        return outputs[: -len(state)]

    return call


def _of_its_own(result: torch.fx.Node) -> torch.fx.Node:
    """`result`, or a copy of it if it is a dequantize node that operators use too.

    torchao gives every operator a dequantize node of its own; XNNPACK fuses it with the operator, so that nothing else
    may read it.
    """
    if not result.users or not str(result.target).startswith(DEQUANTIZE):
        return result
    with result.graph.inserting_after(result):
        return result.graph.node_copy(result)


def _rank(node: torch.fx.Node) -> int:
    """The number of dimensions, which nodes that quantizers inserted have from what they quantize."""
    while "val" not in node.meta:
        node = node.all_input_nodes[0]
    return int(node.meta["val"].ndim)


def _placeholder_value(program: ExportedProgram, buffer: str) -> Any:
    names: Mapping[str, str] = program.graph_signature.inputs_to_buffers
    return next(node.meta["val"] for node in program.graph.nodes if names.get(node.name) == buffer)
