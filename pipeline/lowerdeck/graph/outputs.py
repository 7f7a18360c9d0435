"""The outputs of a program: their names, and the containers in which a model returns them.

A `.pt2` names the class of a container, which another process may lack. So mappings, dataclasses (such as Hugging
Face's ModelOutput) and named tuples become plain dicts here; their keys are the names of the outputs in every record.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from lowerdeck.compat.attribute_paths import read_any_name

if TYPE_CHECKING:
    from torch.export import ExportedProgram

SINGLE = "output"
"""Name of the output of a model that returns one tensor."""


def output_names(program: ExportedProgram) -> list[str]:
    """The outputs' paths in what the model returns, in order, e.g. `logits` or `hidden_states.0`; all different.

    Those of a tuple are `output_0`, `output_1` ..., because a number alone names nothing.
    """
    names: list[str] = []
    for path in _paths(_structure(program)):
        name = ".".join(path) or SINGLE
        name = f"{SINGLE}_{name}" if name[0].isdigit() else name
        while name in names:
            name += "_"
        names.append(name)
    return names


def has_single_output(program: ExportedProgram) -> bool:
    """Whether the model returns a tensor, or a tuple or list of one."""
    return len(list(_paths(_structure(program)))) == 1


def with_plain_containers(program: ExportedProgram) -> ExportedProgram:
    """`program` with dicts in place of other mappings, dataclasses and named tuples; it is modified."""
    return _with_output_structure(program, _plain(_structure(program)))


def with_outputs_of(program: ExportedProgram, source: ExportedProgram) -> ExportedProgram:
    """`program`, traced again from what `source` became, with the containers of `source`; it is modified."""
    return _with_output_structure(program, _structure(source))


def rename_outputs(program: ExportedProgram) -> None:
    """Let the signature name the nodes that the graph returns, after some were replaced."""
    results: Any = program.graph.output_node().args[0]
    for spec, result in zip(program.graph_signature.output_specs, results, strict=True):
        if isinstance(result, torch.fx.Node):
            spec.arg.name = result.name
    program.graph_module.recompile()


def traced(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], dynamic_shapes: Any = None) -> ExportedProgram:
    """torch.export's program of `model`, which may return dataclasses that torch.export does not know.

    Raises:
        Exception: whatever torch.export, or the model's own code, raises.
    """
    read_any_name()
    shapes = dynamic_shapes and _bound(model, dynamic_shapes)
    if isinstance(model, torch.jit.ScriptModule):  # has no hooks, and torch.export says that it takes none
        return torch.export.export(model, inputs, dynamic_shapes=shapes)
    # While it is traced, because no call beside that can be undone for every model.
    hook = model.register_forward_hook(_register_returned)
    try:
        return torch.export.export(model, inputs, dynamic_shapes=shapes)
    finally:
        hook.remove()


def _register_returned(model: torch.nn.Module, inputs: Any, returned: Any) -> None:
    register_dataclasses(returned)


def _bound(model: torch.nn.Module, each: Sequence[Any]) -> tuple[Any, ...]:
    """`each`, one for every input, by the arguments of forward, of which `*inputs` is one."""
    try:
        return tuple(inspect.signature(model.forward).bind(*each).arguments.values())
    except (TypeError, ValueError):  # torch.export says more of another number of inputs, or has forward elsewhere
        return tuple(each)


def register_dataclasses(value: Any) -> None:
    """Make torch.export accept the dataclasses in what a model returned."""
    is_instance = dataclasses.is_dataclass(value) and not isinstance(value, type)
    if is_instance and type(value) not in pytree.SUPPORTED_NODES:
        torch.export.register_dataclass(type(value))
    for item in (_named_items(value) or {}).values() or (value if isinstance(value, (tuple, list)) else ()):
        register_dataclasses(item)


def _structure(program: ExportedProgram) -> Any:
    """What the model returns, with the position of each output in place of it."""
    spec = program.call_spec.out_spec
    assert spec is not None
    # Tensors, because a dataclass may look at its fields when it is made.
    return pytree.tree_unflatten([torch.tensor(index) for index in range(spec.num_leaves)], spec)


def _with_output_structure(program: ExportedProgram, structure: Any) -> ExportedProgram:
    spec = pytree.tree_structure(structure)
    signature = program.module_call_graph[0].signature
    assert signature is not None
    if spec != signature.out_spec:
        assert spec.num_leaves == signature.out_spec.num_leaves, "containers do not change the number of outputs"
        signature.out_spec = spec
    return program


def _plain(value: Any) -> Any:
    """`value` with dicts for everything that has names."""
    if (items := _named_items(value)) is not None:
        return {name: _plain(item) for name, item in items.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_plain(item) for item in value)
    return value


def _paths(value: Any, path: Sequence[str] = ()) -> Iterator[Sequence[str]]:
    items = _named_items(value)
    if items is None and isinstance(value, (tuple, list)):
        items = {str(index): item for index, item in enumerate(value)}
    if items is None:
        yield path
        return
    for name, item in items.items():
        yield from _paths(item, (*path, name))


def _named_items(value: Any) -> dict[str, Any] | None:
    """The parts of a container by name, in the order of the outputs; None where they have no names."""
    if isinstance(value, Mapping):
        return {str(name): item for name, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {name: item for name, item in fields.items() if item is not None}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))
    if pytree.is_structseq(value):  # e.g. torch.return_types.max
        return dict(zip(value.__match_args__, value, strict=True))
    return None
