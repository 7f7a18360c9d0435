"""State: buffers that a program writes, so that one call depends on those before it; and other writes in place.

torch.export leaves writes as in-place operators. No later stage treats these right: quantizers take the buffer for a
constant, and backends drop the write. Here they become what torch.export calls a buffer mutation, an output of the
program that its runtime copies into the buffer. Nor do quantizers see that who reads a tensor reads what was assigned
to a slice of it.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch.export.graph_signature import InputKind
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.export import ExportedProgram

_DECOMPOSED = torch.ops.aten._native_batch_norm_legit_no_training.default


def initial_state(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """The buffers that `program` writes as its outputs, by name, with their first values; empty without state."""
    written = dict.fromkeys(program.graph_signature.buffers_to_mutate.values())
    stored = {**program.constants, **program.state_dict}
    return {name: stored[name] for name in written}


def with_own_state(program: ExportedProgram, *, check_guards: bool = False) -> torch.fx.GraphModule:
    """`program` as a module with state of its own: executing `program.module()` writes the initial state of `program`.

    Args:
        program: The program, whose parameters and other buffers the module shares.
        check_guards: Whether the module refuses sizes that the program was not made for.
    """
    module = program.module(check_guards=check_guards)
    for name, value in initial_state(program).items():
        owner, _, key = name.rpartition(".")
        module.get_submodule(owner).register_buffer(key, value.clone())
    return module


def store_buffers(program: ExportedProgram) -> None:
    """Keep the buffers that the model does not save (persistent=False) where backends look for all buffers."""
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.BUFFER and spec.persistent is False:
            assert spec.target is not None, "a buffer has a name"
            program.state_dict[spec.target] = program.constants.pop(spec.target)
            spec.persistent = True


def drop_unread_writes(program: ExportedProgram) -> None:
    """Remove what writes a parameter or plain attribute that nothing reads, such as a counter of calls."""
    constants, memory = _constants(program), dict[torch.fx.Node, set[torch.fx.Node]]()
    for _, _, memory in _writes(program.graph):  # noqa: B007, as the last one has all nodes
        pass
    for owner in program.graph.find_nodes(op="placeholder"):
        same = [node for node, owners in memory.items() if owner in owners]
        if owner.name in constants and all(memory[node] == {owner} and {*node.users} <= {*same} for node in same):
            for node in reversed(same[1:]):
                program.graph.erase_node(node)
    program.graph_module.recompile()


def lost_writes(program: ExportedProgram) -> dict[str, torch.fx.Node]:
    """What `program` writes in place and cannot keep, by name, and the operators that do.

    These are parameters and plain attributes, and buffers in a branch of torch.cond or the body of a loop.
    """
    buffers, found = program.graph_signature.inputs_to_buffers, dict[str, torch.fx.Node]()
    for node, source, memory in _writes(program.graph):
        names = _constants(program) | ({} if isinstance(node.target, torch._ops.OpOverload) else buffers)
        found |= {names[owner.name]: node for owner in memory[source] if owner.name in names}
    return found


def _constants(program: ExportedProgram) -> dict[str, str]:
    """The parameters and plain attributes of the model by the placeholders of `program`."""
    signature = program.graph_signature
    return {**signature.inputs_to_parameters, **signature.inputs_to_lifted_tensor_constants}


def without_hidden_writes(program: ExportedProgram) -> ExportedProgram:
    """`program` with an output for every buffer that it writes in place, and no other write that a view hides.

    It is `program` itself where it has neither: an in-place activation whose own result alone is read stays.
    """
    if not _has_hidden_write(program):
        return program
    functional: ExportedProgram = program.run_decompositions({})
    _restore_batch_norms(functional.graph_module)
    return functional


def keep_inputs(program: ExportedProgram) -> None:
    """Let an ATen program write into copies of inputs, which whoever executes it still needs.

    An operator that writes a whole input that nothing else reads is replaced by the one that makes a new tensor.
    """
    inputs, nodes = set(program.graph_signature.user_inputs), list(program.graph.nodes)
    memory: dict[torch.fx.Node, set[torch.fx.Node]] = {}  # as in _writes
    copied: set[torch.fx.Node] = set()
    for number, node in enumerate(nodes):
        written, shared = _written_and_shared(node)
        owners = set().union(*(memory[source] for source in shared)) or {node}
        given = {owner for source in written for owner in memory[source] if owner.name in inputs}
        if given:
            functional, later = _functional(node), set(nodes[number + 1 :])
            aliases = [other for other, its_owners in memory.items() if its_owners & owners]
            if functional is None or any(user in later for other in aliases for user in other.users):
                copied |= given
            else:
                node.target, owners = functional, {node}
        memory[node] = owners
    last = program.graph.find_nodes(op="placeholder")[-1]
    for node in sorted(copied, key=lambda each: each.name):
        with program.graph.inserting_after(last):
            copy = program.graph.call_function(torch.ops.aten.clone.default, (node,))
        copy.meta = dict(node.meta)
        for user in [each for each in node.users if each is not copy]:
            user.replace_input_with(node, copy)
    program.graph_module.recompile()


def _functional(node: torch.fx.Node) -> Any:
    """The operator that makes a new tensor of what `node` writes in place, e.g. aten.mul.Tensor; None without one.

    None, too, where the new tensor would have another dtype: `x.gt_(0)` keeps that of x, and `x.gt(0)` is of booleans.
    """
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return None
    namespace, _, name = target._schema.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name.removesuffix("_"), None)
    names = packet.overloads() if packet is not None and name.endswith("_") else ()
    overloads = (getattr(packet, each) for each in names)
    functional = next((each for each in overloads if _takes(each) == _takes(target)), None)
    if functional is None:
        return None
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
    made, kept = (
        [value.dtype for value in tree_leaves(values) if isinstance(value, torch.Tensor)]
        for values in (functional(*args, **kwargs), node.meta["val"])
    )
    return functional if made == kept else None


def _takes(overload: Any) -> list[tuple[str, str]]:
    """Names and types of its arguments: `aten.pow_.Scalar` raises a tensor to a number, `aten.pow.Scalar` a number."""
    return [(each.name, str(each.type)) for each in overload._schema.arguments]


def store_initial_state(program: ExportedProgram) -> None:
    """Mark the state of an edge program, so that the `.pte` holds its initial values.

    Otherwise ExecuTorch stores the size alone, and the first call starts with whatever the memory holds.
    """
    for node in state_nodes(program):
        node.meta["et_init_buffer"] = True


def state_nodes(program: ExportedProgram) -> list[torch.fx.Node]:
    """The placeholders of the state of `program`."""
    buffers, written = program.graph_signature.inputs_to_buffers, initial_state(program)
    return [node for node in program.graph.find_nodes(op="placeholder") if buffers.get(node.name) in written]


def _has_hidden_write(program: ExportedProgram) -> bool:
    """Whether an in-place operator writes a buffer or a view of one, or what is later read by another name."""
    position = {node: number for number, node in enumerate(program.graph.nodes)}
    for node, source, memory in _writes(program.graph):
        if any(owner.name in program.graph_signature.inputs_to_buffers for owner in memory[source]):
            return True
        made_here = {owner for owner in memory[source] if owner.op != "placeholder"}
        others = (other for other, owners in memory.items() if other is not source and owners & made_here)
        if any(position[user] > position[node] for other in others for user in other.users):
            return True
    return False


def _writes(
    graph: torch.fx.Graph,
) -> Iterator[tuple[torch.fx.Node, torch.fx.Node, dict[torch.fx.Node, set[torch.fx.Node]]]]:
    """Nodes that write in place, and the tensor that each writes.

    With them comes, for every node before, which nodes made what its result shares memory with.
    """
    memory: dict[torch.fx.Node, set[torch.fx.Node]] = {}
    for node in graph.nodes:
        written, shared = _written_and_shared(node)
        yield from ((node, source, memory) for source in written)
        memory[node] = set().union(*(memory[source] for source in shared)) or {node}


def _written_and_shared(node: torch.fx.Node) -> tuple[list[torch.fx.Node], list[torch.fx.Node]]:
    """The arguments that `node` writes, and those that its result shares memory with."""
    if node.target is operator.getitem:
        return [], node.all_input_nodes
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return _written_in_branches(node), []
    if not isinstance(node.target, torch._ops.OpOverload):
        return [], []
    arguments = node.target._schema.arguments
    given = dict(zip((each.name for each in arguments), node.args, strict=False)) | node.kwargs
    written, shared = list[torch.fx.Node](), list[torch.fx.Node]()
    for argument in arguments:
        if argument.alias_info is not None:
            found = [each for each in tree_leaves(given.get(argument.name)) if isinstance(each, torch.fx.Node)]
            shared += found
            written += found if argument.alias_info.is_write else []
    return written, shared


def _written_in_branches(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The operands that a branch of torch.cond, or the body of a loop, writes in place."""
    leaves, module, written = tree_leaves(node.args), node.graph.owning_module, list[torch.fx.Node]()
    for part in (getattr(module, str(each.target), None) for each in node.all_input_nodes if each.op == "get_attr"):
        if isinstance(part, torch.fx.GraphModule):
            inputs = part.graph.find_nodes(op="placeholder")
            operands = dict(zip(inputs, leaves[len(leaves) - len(inputs) :], strict=True))
            writes = (owner for _, source, memory in _writes(part.graph) for owner in memory[source])
            written += [operands[owner] for owner in writes if isinstance(operands.get(owner), torch.fx.Node)]
    return written


def _restore_batch_norms(module: torch.fx.GraphModule) -> None:
    """Replace what batch norms were decomposed into: quantizers fuse only `aten.batch_norm` with convolutions."""
    for node in module.graph.find_nodes(op="call_function", target=_DECOMPOSED):
        (result,) = node.users
        assert result.target is operator.getitem, "in inference only the normalized tensor is used"
        *tensors, momentum, eps = node.args
        with module.graph.inserting_before(node):
            arguments = (*tensors, False, momentum, eps, False)
            restored = module.graph.call_function(torch.ops.aten.batch_norm.default, arguments)
        restored.meta = result.meta
        result.replace_all_uses_with(restored)
        module.graph.erase_node(result)
        module.graph.erase_node(node)
    module.recompile()
