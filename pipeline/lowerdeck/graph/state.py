"""State: buffers that a program writes, so that one call depends on those before it; and other writes in place.

torch.export leaves writes as in-place operators. No later stage treats these right: quantizers take the buffer for a
constant, and backends drop the write. Here they become what torch.export calls a buffer mutation, an output of the
program that its runtime copies into the buffer. Nor do quantizers see that who reads a tensor reads what was assigned
to a slice of it.
"""

from __future__ import annotations

import itertools
import operator
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.export.graph_signature import InputKind
from torch.utils._pytree import tree_leaves

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.graph.retracing import replace_other_uses
from lowerdeck.graph.source_lines import first_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.export import ExportedProgram

_DECOMPOSED = torch.ops.aten._native_batch_norm_legit_no_training.default
_GRADIENTS = torch.ops.higher_order.wrap_with_set_grad_enabled
_AUTOCAST = torch.ops.higher_order.wrap_with_autocast
_CONTEXTS = (_AUTOCAST, _GRADIENTS)
"""Operators that execute, once, what forward computes in a `with` statement."""
_COPY = torch.ops.aten.lift_fresh_copy.default
"""What tracing makes of a tensor that forward makes of numbers: its traced value shares memory with what is stored."""
_IS_NEW = "lowerdeck_is_new"
"""In the metadata of a node that wrote in place: its traced value still shares memory with what it wrote."""


class _Write(NamedTuple):
    """An operator that writes in place, and the argument that it writes of the node of which it is, or is a part."""

    operator: torch.fx.Node
    source: torch.fx.Node
    is_conditional: bool = False
    """Whether it is in a branch of torch.cond or the body of a loop."""


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


def name_views(program: ExportedProgram) -> None:
    """Replace operators that change the shape of a tensor in place, such as `unsqueeze_`, by those that make a view.

    They write no values, and the nodes behind them read their results.
    """
    for node in program.graph.nodes:
        if torch.Tag.inplace_view in getattr(node.target, "tags", ()) and (view := _functional(node)) is not None:
            node.target = view
    program.graph_module.recompile()


def drop_unread_writes(program: ExportedProgram) -> None:
    """Remove what writes a parameter or plain attribute that nothing reads, such as a counter of calls."""
    constants, memory = _constants(program), _memory(program.graph)
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
    constants, buffers = _constants(program), program.graph_signature.inputs_to_buffers
    memory, found = _memory(program.graph), dict[str, torch.fx.Node]()
    for node in program.graph.nodes:
        for write in _writes(node):
            names = constants | (buffers if write.is_conditional else {})
            found |= {names[owner.name]: write.operator for owner in memory[write.source] if owner.name in names}
    return found


def _constants(program: ExportedProgram) -> dict[str, str]:
    """The parameters and plain attributes of the model by the placeholders of `program`."""
    signature = program.graph_signature
    return {**signature.inputs_to_parameters, **signature.inputs_to_lifted_tensor_constants}


def without_hidden_writes(program: ExportedProgram) -> ExportedProgram:
    """`program` with an output for every buffer that it writes in place, and no other write that a view hides.

    Nor has it parts of their own for what forward computes in `with torch.autocast(...)` or `torch.enable_grad()`,
    which quantizers do not look into. It is `program` itself where it has none of these.

    Raises:
        LowerdeckError: PyTorch cannot take an operator out of a block of torch.autocast.
    """
    has_parts = any(node.target in _CONTEXTS for node in program.graph.nodes)
    if not has_parts and not _has_hidden_write(program):
        return program
    composed = {node.target for node in program.graph.nodes if _hides_view(node)}
    known = torch.export.default_decompositions() if composed else {}
    _disable_gradients(program)
    table = {each: known[each] for each in composed & known.keys()}
    try:
        functional: ExportedProgram = program.run_decompositions(table)
    except (AssertionError, RuntimeError) as error:
        is_cast = program.graph.find_nodes(op="call_function", target=_AUTOCAST)
        if not is_cast or not re.search("dtype|scalar type", str(error)):
            raise
        # PyTorch casts the operands of the operators on its list only, and of none that it composes of these.
        raise LowerdeckError(
            f"an operator in `with torch.autocast(...)` gets operands of several dtypes: {first_line(error)}. Cast the "
            "operands of einsum, inner and torch.linalg's operators there, e.g. `x.to(torch.bfloat16)`, or leave "
            "torch.autocast out: quantization.scheme chooses what a program computes in"
        ) from error
    _restore_batch_norms(functional.graph_module)
    return functional


def _disable_gradients(program: ExportedProgram) -> None:
    """Leave out that forward enables gradients: tracing adds operators for them."""
    for part in program.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.find_nodes(op="call_function", target=_GRADIENTS):
                node.args = (False, *node.args[1:])
            part.recompile()


def write_new_tensors(program: ExportedProgram) -> None:
    """Replace operators of an ATen program that write in place by those that make a new tensor, which is read instead.

    Quantizers and what looks for masks know few of them, and find nothing of those whose own result nobody reads. An
    input whose memory is also read by another name is copied before: whoever executes the program still needs it.
    Others of the kind, writes into stored tensors and those that keep another dtype stay.
    """
    names, nodes = set(program.graph_signature.user_inputs), list(program.graph.nodes)
    placeholders, memory = program.graph.find_nodes(op="placeholder"), _memory(program.graph)
    stored = {node for node in placeholders if node.name not in names}
    for number, node in enumerate(nodes):
        sources = [write.source for write in _writes(node)]
        written = set().union(*(memory[each] for each in sources))
        if not written:
            continue
        given = [each for each in placeholders if each in written - stored]
        later, functional = set(nodes[number + 1 :]), None if written & stored else _functional(node)
        others = (each for each in _before(node) if each not in sources and memory[each] & written)
        if functional is not None and not any(user in later for other in others for user in other.users):
            sources[0].replace_all_uses_with(node, delete_user_cb=later.__contains__)
            node.target, node.meta[_IS_NEW] = functional, True
        else:
            for each in given:
                _copy(each, placeholders[-1])
        for each in given:  # what is computed from now on is in another tensor
            value = each.meta["val"]
            each.meta["val"] = value.new_empty_strided(value.shape, value.stride())
        memory = _memory(program.graph) if given else memory
    program.graph_module.recompile()


def _before(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """The nodes in front of `node`, with the copies that have been made by now."""
    return itertools.takewhile(lambda each: each is not node, node.graph.nodes)


def _copy(node: torch.fx.Node, last: torch.fx.Node) -> None:
    """Let all who read `node` read a copy of it, made behind the node `last`."""
    with node.graph.inserting_after(last):
        copy = node.graph.call_function(torch.ops.aten.clone.default, (node,))
    copy.meta = dict(node.meta)
    replace_other_uses(node, copy)


def _functional(node: torch.fx.Node) -> Any:
    """The operator that makes a new tensor of what `node` writes in place, e.g. aten.mul.Tensor; None without one.

    None, too, where the new tensor would have another dtype: `x.gt_(0)` keeps that of x, and `x.gt(0)` is of booleans.
    """
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return None
    namespace, _, name = target._schema.name.partition("::")
    of_new = f"__{name[3:]}" if name.startswith("__i") else name.removesuffix("_")  # `m &= n` is aten.__iand__
    packet = getattr(getattr(torch.ops, namespace), of_new, None) if of_new != name else None
    names = packet.overloads() if packet is not None else ()
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
    memory, nodes = _memory(program.graph), list(program.graph.nodes)
    for number, node in enumerate(nodes):
        for write in _writes(node):
            if any(owner.name in program.graph_signature.inputs_to_buffers for owner in memory[write.source]):
                return True
            later, made_here = (
                set(nodes[number + 1 :]),
                {each for each in memory[write.source] if each.op != "placeholder"},
            )
            aliases = (other for other in nodes[:number] if other is not write.source and memory[other] & made_here)
            if any(user in later for other in aliases for user in other.users):
                return True
    return False


def _hides_view(node: torch.fx.Node) -> bool:
    """Whether an operator that is not declared as a view returns one, as some that PyTorch composes of others do."""
    return (
        isinstance(node.target, torch._ops.OpOverload)
        and not any(each.alias_info for each in node.target._schema.arguments)
        and _IS_NEW not in node.meta
        and any(_storages(node) & _storages(each) for each in node.all_input_nodes)
    )


def _memory(graph: torch.fx.Graph) -> dict[torch.fx.Node, set[torch.fx.Node]]:
    """For every node, which nodes made what its result shares memory with; itself where it makes a tensor."""
    memory: dict[torch.fx.Node, set[torch.fx.Node]] = {}
    for node in graph.nodes:
        storages, operands = _storages(node), node.all_input_nodes
        if node.target is operator.getitem and isinstance(operands[0].target, torch._ops.HigherOrderOperator):
            operands = operands[0].all_input_nodes  # one result of several, which share memory with different operands
        shared = [each for each in operands if _storages(each) & storages and node.target != _COPY]
        if isinstance(node.target, torch._ops.OpOverload):  # values of plain attributes are stored again as results
            shared += [write.source for write in _writes(node)]
        memory[node] = set().union(*(memory[each] for each in shared)) or {node}
    return memory


def _storages(node: torch.fx.Node) -> set[int]:
    """The storages of the tensors that `node` returns while it is traced, of which views share one.

    The operators' schemas do not tell: `contiguous`, `reshape` and `to` are declared as views, and may copy; `dropout`
    and `type_as` are not, and may return their argument.
    """
    values = tree_leaves(node.meta.get("val"))
    tensors = (value for value in values if isinstance(value, torch.Tensor) and value.layout is torch.strided)
    return {value.untyped_storage()._cdata for value in tensors}


def _writes(node: torch.fx.Node) -> list[_Write]:
    """What is written in place when `node` is executed."""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return _writes_in_parts(node)
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    arguments = node.target._schema.arguments
    given = dict(zip((each.name for each in arguments), node.args, strict=False)) | node.kwargs
    written = [given.get(each.name) for each in arguments if each.alias_info is not None and each.alias_info.is_write]
    return [_Write(node, each) for each in tree_leaves(written) if isinstance(each, torch.fx.Node)]


def _writes_in_parts(node: torch.fx.Node) -> list[_Write]:
    """What the branches of torch.cond, the body of a loop or of a `with` statement write of their operands."""
    leaves, module, found = tree_leaves(node.args), node.graph.owning_module, list[_Write]()
    for part in (getattr(module, str(each.target), None) for each in node.all_input_nodes if each.op == "get_attr"):
        if isinstance(part, torch.fx.GraphModule):
            inputs = part.graph.find_nodes(op="placeholder")
            operands = zip(inputs, leaves[len(leaves) - len(inputs) :], strict=True)
            memory = _memory(part.graph)
            given = [(memory[own], operand) for own, operand in operands if isinstance(operand, torch.fx.Node)]
            found += [
                _Write(write.operator, operand, write.is_conditional or node.target not in _CONTEXTS)
                for write in (write for each in part.graph.nodes for write in _writes(each))
                for owners, operand in given
                if owners & memory[write.source]
            ]
    return found


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
