"""What a delegate leaves of a program, as a program of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)

from lowerdeck.graph.nodes import DELEGATION_TAG

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node


def remainder(program: ExportedProgram) -> ExportedProgram:
    """The nodes of `program` without a delegation tag; `program` itself where no node has one.

    Tensors that a delegate computes are inputs of it, and those that a delegate reads are outputs. Nodes keep their
    names and copies of their metadata.
    """
    nodes: list[Node] = list(program.graph.nodes)
    if not any(DELEGATION_TAG in node.meta for node in nodes):
        return program
    graph = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    inputs: list[InputSpec] = []
    kept = [node for node in nodes if node.op == "call_function" and DELEGATION_TAG not in node.meta]
    needed = {source for node in kept for source in node.all_input_nodes}
    for node in nodes:
        is_computed_elsewhere = DELEGATION_TAG in node.meta and node.op != "placeholder"
        if node.op == "output" or (is_computed_elsewhere and node not in needed):
            continue
        if is_computed_elsewhere:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
        elif node.op == "placeholder" and node not in needed:
            continue
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        assert copies[node].name == node.name, "names stay unique among fewer nodes"
        if copies[node].op == "placeholder":
            own = InputSpec(InputKind.USER_INPUT, TensorArgument(node.name), None)
            inputs.append(own if is_computed_elsewhere else specs[node.name])
    read_elsewhere = [node for node in kept if any(user not in copies for user in node.users)]
    graph.output(tuple(copies[node] for node in read_elsewhere))
    outputs = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in read_elsewhere]
    used = {spec.target for spec in inputs}
    return torch.export.ExportedProgram(
        root=torch.fx.GraphModule({}, graph),
        graph=graph,
        graph_signature=ExportGraphSignature(input_specs=inputs, output_specs=outputs),
        state_dict={name: value for name, value in program.state_dict.items() if name in used},
        range_constraints=dict(program.range_constraints),
        module_call_graph=list(program.module_call_graph),
        example_inputs=None,
        constants={name: value for name, value in program.constants.items() if name in used},
        verifiers=[program.verifier],
    )
