"""What torch.export accepts and no later stage can take, such as complex numbers, foreign operators, hidden state."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from executorch.backends.transforms.utils import delete_constant_placeholder
from torch.export.graph_signature import ConstantArgument, OutputKind, TensorArgument
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._pytree import tree_leaves

from lowerdeck.contracts.errors import LowerdeckError, is_full_memory
from lowerdeck.graph.library_errors import described_node
from lowerdeck.graph.model_copies import copied
from lowerdeck.graph.nodes import operator_name
from lowerdeck.graph.state import lost_writes

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_LIBRARIES = ("torchaudio", "torchvision")
"""Namespaces of operators that neither stages after export nor ExecuTorch have."""
_TRAINING, _PROBABILITY = ("train", "training"), ("p", "dropout_p")
"""Arguments of random operators: not training, or with a probability of 0, they draw nothing."""
_OWN = ("training", "_parameters", "_buffers", "_modules")
_HIGHER_ORDER = {
    "flex_attention": "Write F.scaled_dot_product_attention(query, key, value, attn_mask=MASK), whose mask has what "
    "score_mod and block_mask add",
    "while_loop": "Write a fixed number of steps, `for _ in range(N):`, and torch.where for what is to stay as it is "
    "from then on",
}
"""Operators that torch.export and no stage behind it takes, and what to write instead."""
STATE_ADVICE = (
    "Register the state in __init__, self.register_buffer(NAME, torch.zeros(SHAPE)), and write it in forward by "
    "self.NAME.copy_(VALUE). A value that need not be kept is a new tensor, e.g. `weight = self.weight.clamp(-1, 1)`"
)


def check_outputs(program: ExportedProgram, name: str) -> None:
    """Raise LowerdeckError unless the model `name` returns tensors, alone or in any containers, of known sizes."""
    specs = [spec for spec in program.graph_signature.output_specs if spec.kind is OutputKind.USER_OUTPUT]
    wrong = [_returned(output.arg) for output in specs if not isinstance(output.arg, TensorArgument)]
    if wrong or not specs:
        found = ", ".join(dict.fromkeys(wrong)) or "nothing"
        raise LowerdeckError(
            f"{name} returns {found}; a program returns tensors, alone or in tuples, lists, "
            "dicts and dataclasses. Wrap the model in a module whose forward selects them, e.g. "
            "`return self.model(x)['out']`, and name that module as model.options.factory"
        )
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    for output in specs:
        assert isinstance(output.arg, TensorArgument)
        shape = getattr(values[output.arg.name], "shape", ())
        if any(free_unbacked_symbols(size) for size in shape if isinstance(size, torch.SymInt)):
            raise LowerdeckError(
                f"{name} returns {output.arg.name} of shape {list(shape)}, whose size depends on values of tensors, "
                "as those of nonzero() and of boolean masks do; memory is planned for fixed sizes. Wrap the model in a "
                "module that returns a fixed number, e.g. the first k by torch.topk, and name that module as "
                "model.options.factory"
            )


def _returned(output: Any) -> str:
    """What a model returns that is no tensor, from torch.export's argument for it."""
    if not isinstance(output, ConstantArgument):
        return "a number that it computes of tensors (by tolist() or item(): return the tensor)"
    if output.value is None or isinstance(output.value, bool):
        return str(output.value)
    return f"the text {output.value!r}" if isinstance(output.value, str) else f"the number {output.value}"


def drop_unread_complex(program: ExportedProgram) -> None:
    """Remove complex tensors that an ATen program stores and never reads, as a table for another method of a model."""
    signature = program.graph_signature
    stored = {*signature.inputs_to_parameters, *signature.inputs_to_buffers}
    stored |= {*signature.inputs_to_lifted_tensor_constants}
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        is_complex = isinstance(value, torch.Tensor) and value.is_complex()
        if is_complex and node.name in stored and not node.users:
            delete_constant_placeholder(program, node)
    program.graph_module.recompile()


def check_real(program: ExportedProgram) -> None:
    """Raise LowerdeckError where a tensor has complex numbers, for which ExecuTorch's programs have no element type."""
    for node in _nodes(program):
        values = [value for value in tree_leaves(node.meta.get("val")) if isinstance(value, torch.Tensor)]
        if any(value.dtype.is_complex for value in values):
            raise LowerdeckError(
                f"{described_node(node)} has complex numbers, which ExecuTorch's programs do not have\nCompute real "
                "and imaginary parts as tensors of their own: a Fourier transform is two matrix products, "
                "`x @ cosines` and `x @ sines`, with constants of the model. Or leave it out of the model, and compute "
                "it before the program's input"
            )


def check_dense(program: ExportedProgram) -> None:
    """Raise LowerdeckError where a tensor is sparse: files of programs cannot store one, and no kernel reads it."""
    signature = program.graph_signature
    stored = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    stored |= signature.inputs_to_lifted_tensor_constants
    for node in _nodes(program):
        values = [value for value in tree_leaves(node.meta.get("val")) if isinstance(value, torch.Tensor)]
        if any(value.layout is not torch.strided for value in values):
            raise LowerdeckError(
                f"{stored.get(node.name) or described_node(node)} is sparse, and programs have dense tensors only\n"
                "Register what is constant in __init__ by `.to_dense()`, and compute with dense tensors in forward, "
                "e.g. `adjacency @ x` instead of torch.sparse.mm(adjacency, x)"
            )


def check_parameters(program: ExportedProgram) -> None:
    """Raise LowerdeckError where a parameter that the program reads has numbers that are not finite.

    Buffers may: masks have minus infinity.
    """
    signature = program.graph_signature
    read = [node for node in program.graph.nodes if node.op == "placeholder" and node.users]
    names = [signature.inputs_to_parameters[node.name] for node in read if node.name in signature.inputs_to_parameters]
    counts = {name: int((~program.state_dict[name].isfinite()).sum()) for name in names}
    if wrong := [f"{name} ({count} of {program.state_dict[name].numel()})" for name, count in counts.items() if count]:
        raise LowerdeckError(
            f"parameters of the model are NaN or infinite: {', '.join(wrong)}; no program computes anything with them. "
            "A training that diverged leaves such numbers: choose an earlier checkpoint. A mask is no parameter: "
            "self.register_buffer(NAME, MASK)"
        )


def check_writes(program: ExportedProgram) -> None:
    """Raise LowerdeckError where an operator writes in place what a program does not keep from call to call."""
    if lost := lost_writes(program):
        kinds = dict.fromkeys(program.graph_signature.buffers, "buffer")
        kinds |= dict.fromkeys(program.graph_signature.parameters, "parameter")
        listed = [
            f"{name} is a {kinds.get(name, 'plain attribute')} that forward writes, at {described_node(node)}"
            for name, node in lost.items()
        ]
        found = {_write_advice(kinds.get(name), node) for name, node in lost.items()}
        raise LowerdeckError(
            f"{'; '.join(listed)}. From call to call, a program keeps only buffers that it writes outside of "
            f"torch.cond and loops. {'. '.join(sorted(found))}"
        )


def _write_advice(kind: str | None, node: torch.fx.Node) -> str:
    """The way out for one write that a program loses."""
    if node.target is torch.ops.aten.embedding_renorm_.default:
        return (
            "An embedding with max_norm scales rows of its table in every call. Scale them once, "
            "`torch.renorm(layer.weight, layer.norm_type, 0, layer.max_norm)`, in the file of model.weights or in the "
            "factory, and let the factory set `layer.max_norm = None`"
        )
    if kind == "buffer":
        return "Let the branches or the body return the value, and write it into the buffer behind them"
    return STATE_ADVICE


def check_operators(program: ExportedProgram) -> None:
    """Raise LowerdeckError where an operator is one of PyTorch's that ExecuTorch has not, or of a foreign library.

    Operators of the user's own are not: a delegate may have them, and its plugin registers them.
    """
    for node in _nodes(program):
        name = operator_name(node)
        if name in _HIGHER_ORDER:
            raise LowerdeckError(f"ExecuTorch's programs have no {name}: {described_node(node)}\n{_HIGHER_ORDER[name]}")
    for node, operator in _operators(program):
        if operator.namespace in _LIBRARIES:
            raise LowerdeckError(
                f"{described_node(node)} is an operator of the library {operator.namespace!r}, which ExecuTorch has "
                "no kernels for\nWrite it with PyTorch's own functions, or compute it behind the program: "
                "`task: detection` decodes and suppresses boxes there"
            )


def check_not_random(program: ExportedProgram) -> None:
    """Raise LowerdeckError where an operator draws numbers: no two calls of such a program would agree."""
    for node, operator in _operators(program):
        if torch.Tag.nondeterministic_seeded not in operator.tags or _draws_nothing(node, operator):
            continue
        raise LowerdeckError(
            f"{described_node(node)} is random, also in eval mode, so that nothing can be compared with what it "
            "computes\nUse torch.nn.Dropout, or pass `training=self.training` to functions of "
            "torch.nn.functional, whose `dropout` is on by default; make random numbers an input of the model"
        )


def check_norms(program: ExportedProgram) -> None:
    """Raise LowerdeckError where a norm is in training mode: no kernel updates the statistics that it has."""
    for node in in_training_mode(program):
        raise LowerdeckError(
            f"{described_node(node)} computes as in training, by the statistics of its batch, although the model is in "
            "eval mode\nLet train() of the model pass its mode on to all modules (model.eval() calls train(False)); "
            "functions of torch.nn.functional need `training=self.training`"
        )


def in_training_mode(program: ExportedProgram) -> Iterator[torch.fx.Node]:
    """Dropouts that are on, and norms that ignore the statistics that they have."""
    for node, operator in _operators(program):
        if not re.search("dropout|batch_norm|instance_norm", operator._schema.name):
            continue
        given = _given(node, operator)
        is_training = any(given.get(key) is True for key in (*_TRAINING, "use_input_stats"))
        is_random = "dropout" in operator._schema.name and given.get("p") != 0
        if is_training and (is_random or given.get("running_mean") is not None):
            yield node


def _nodes(program: ExportedProgram) -> Iterator[torch.fx.Node]:
    """All nodes, also in the branches of torch.cond and in the bodies of loops."""
    for part in program.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule):
            yield from part.graph.nodes


def _operators(program: ExportedProgram) -> Iterator[tuple[torch.fx.Node, torch._ops.OpOverload]]:
    for node in _nodes(program):
        if isinstance(node.target, torch._ops.OpOverload):
            yield node, node.target


def _draws_nothing(node: torch.fx.Node, operator: torch._ops.OpOverload) -> bool:
    """Whether the arguments of a random operator say that it is not training, or that its probability is 0."""
    values = {argument.name: argument.default_value for argument in operator._schema.arguments} | _given(node, operator)
    return any(values.get(name, True) in (False, 0) for name in (*_TRAINING, *_PROBABILITY))


def _given(node: torch.fx.Node, operator: torch._ops.OpOverload) -> dict[str, Any]:
    """The arguments of a node by name, without defaults."""
    names = (argument.name for argument in operator._schema.arguments)
    return dict(zip(names, node.args, strict=False)) | dict(node.kwargs)


def written_attributes(model: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> list[str]:
    """The attributes that look otherwise after a call of `model` on `inputs`, found on a copy of the model."""
    try:
        called = copied(model)
        before = _attributes(called)
        with torch.no_grad():
            called(*(value.clone() for value in inputs))
        return [key for key, value in _attributes(called).items() if before.get(key) != value]
    except Exception as error:  # what the model raises ends its export too, with a message; a few cannot be copied
        if is_full_memory(error):
            raise
        return []


def _attributes(model: torch.nn.Module) -> dict[str, str]:
    """Attributes, parameters and buffers of all modules as text, because what they contain may be written in place."""
    return {
        f"{path}.{key}".lstrip("."): repr(value)
        for path, module in model.named_modules()
        for key, value in {**vars(module), **module._parameters, **module._buffers}.items()
        if key not in _OWN
    }
