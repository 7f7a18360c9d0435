"""Exported programs as `.pt2` files whose bytes depend on the program alone.

`torch.export.save` is not byte-stable: provenance metadata has the `id()` of graphs and objects, stack traces have
absolute paths, and the archive's root is named after the file. DVC compares bytes, so all of these are made canonical:
ids are renumbered in order of appearance, paths are relative to `site-packages/` or the working directory, and the root
is always `archive`. The provenance itself stays, because XNNPACK's lowering depends on it.

Edge-dialect programs (the result of `to_edge` and its passes), for which ExecuTorch has no file format, are stored in
the same format: their operators are registered with torch's serializer, and what the serializer drops is restored on
loading. This relies on semi-private interfaces of the pinned versions; tests compare the `.pte` made from the file with
the one made without it.
"""

from __future__ import annotations

import io
import json
import re
import types
import typing
import zipfile
from collections.abc import Callable, Iterator
from functools import partialmethod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from lowerdeck.compat.attribute_paths import read_any_name
from lowerdeck.compat.fake_layouts import Layout
from lowerdeck.compat.fast_graph_passes import fast_graph_passes
from lowerdeck.compat.pytorch import CANONICALIZE, SERIALIZER_TYPING, TENSOR_META
from lowerdeck.graph.source_lines import relative_stack_trace

if TYPE_CHECKING:
    import torch
    from executorch.exir import EdgeCompileConfig, EdgeProgramManager
    from torch.export import ExportedProgram

_EDGE_EXTRAS = "edge.json"
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
_GRAPH_ID = re.compile(r'"graph_id": \d+')
_GENERATED_CODE = re.compile(r"<eval_with_key>\.\d+")
_DYNAMO = "_torchdynamo_"
_PER_ARCHIVE = (".data/version", ".data/serialization_id", "byteorder")


def save(program: ExportedProgram, file: IO[bytes], extra_files: dict[str, str] | None = None) -> None:
    """Write `program` to `file`, with the same bytes in every process and folder.

    Args:
        program: ATen-dialect program; `save_edge` stores edge-dialect programs.
        file: Binary file, open for writing.
        extra_files: Text to store in addition to the program, by name.
    """
    import torch

    buffer = io.BytesIO()
    with fast_graph_passes(), CANONICALIZE.active(lambda program, constants: program):
        torch.export.save(program, buffer, extra_files=extra_files)
    buffer.seek(0)
    reader = torch._C.PyTorchFileReader(buffer)
    output = io.BytesIO()
    writer = torch._C.PyTorchFileWriter(output)
    for name in reader.get_all_records():
        if name in _PER_ARCHIVE:  # the writer adds its own
            continue
        record = reader.get_record(name)
        if name == "models/model.json":
            record = _canonical_model(record)
        writer.write_record(name, record, len(record))
    writer.write_end_of_file()
    file.write(output.getvalue())


def load(path: Path) -> ExportedProgram:
    """The ATen program stored at `path`, quantized or not."""
    _register_quantization(path)
    return _load(path)


def save_edge(program: ExportedProgram, config: EdgeCompileConfig, file: IO[bytes]) -> None:
    """Write an edge program for `load_edge`.

    Args:
        program: Edge-dialect program, not yet lowered to a backend.
        config: Its configuration, in which `to_edge_transform_and_lower` recorded preserved operators.
        file: Binary file, open for writing.
    """
    _register_edge_operators()
    extras = {
        # The serializer drops the order and the debug handles of nodes, on which the `.pte` depends.
        "nodes": [[node.name, node.meta.get("debug_handle")] for node in program.graph.nodes],
        # The edge verifier has to accept operators that the partitioner preserved.
        "config": {
            "_check_ir_validity": config._check_ir_validity,
            "_skip_dim_order": config._skip_dim_order,
            "_core_aten_ops_exception_list": sorted(str(op) for op in config._core_aten_ops_exception_list),
            "preserve_ops": sorted(str(op) for op in config.preserve_ops),
        },
    }
    save(program, file, {_EDGE_EXTRAS: json.dumps(extras)})


def load_edge(path: Path) -> EdgeProgramManager:
    """The edge program that `save_edge` wrote to `path`, ready for `to_backend`."""
    import torch
    from executorch.exir import EdgeCompileConfig, EdgeProgramManager
    from executorch.exir.verification.verifier import EXIREdgeDialectVerifier

    with zipfile.ZipFile(path) as archive:
        extras = json.loads(archive.read(f"archive/extra/{_EDGE_EXTRAS}"))
    config = EdgeCompileConfig(
        **{
            name: [_operator(torch.ops, op) for op in value] if isinstance(value, list) else value
            for name, value in extras["config"].items()
        }
    )
    _register_quantization(path)
    _register_edge_operators()
    verifier = EXIREdgeDialectVerifier(edge_compile_config=config, class_only=True)  # registers the dialect for load
    program = _load(path)
    _restore_nodes(program.graph_module.graph, extras["nodes"])
    program.graph_module.recompile()
    program = program._update(program.graph_module, program.graph_signature, verifiers=[verifier])
    return EdgeProgramManager({"forward": program}, None, config)


def _register_quantization(path: Path) -> None:
    """Import the modules that register the quantization operators of the program at `path`."""
    import torch.ao.quantization.fx._decomposed  # noqa: F401

    with zipfile.ZipFile(path) as archive:
        # Only where needed, because the import takes two seconds.
        model = archive.read("archive/models/model.json")
        if b"torchao." in model:
            import torchao.quantization.quant_primitives  # noqa: F401
        if b"dim_order_ops." in model:  # Arm's quantizer casts 64-bit integers by it
            import executorch.exir.passes.dim_order_ops_registry  # noqa: F401


def _load(path: Path) -> ExportedProgram:
    """torch.export.load, with the type hints of each class computed only once, and values of nodes made directly."""
    import torch

    read_any_name()
    known: dict[Any, dict[str, Any]] = {}

    def get_type_hints(cls: Any, **namespaces: Any) -> dict[str, Any]:
        if cls not in known:
            known[cls] = typing.get_type_hints(cls, **namespaces)
        return known[cls]

    with (
        SERIALIZER_TYPING.active(types.SimpleNamespace(**{**vars(typing), "get_type_hints": get_type_hints})),
        TENSOR_META.active(partialmethod(_fake_tensor, TENSOR_META.original())),
    ):
        program = torch.export.load(path)
    _drop_derived_ranges(program)
    _end_views(program)
    return program


def _fake_tensor(deserializer: Any, by_dispatch: Callable[[Any, Any], Any], stored: Any) -> Any:
    """The fake tensor that torch's serializer describes, made without dispatching an operator."""
    from torch._export.serde import serialize

    shape = tuple(map(deserializer.deserialize_sym_int, stored.sizes))
    stride = tuple(map(deserializer.deserialize_sym_int, stored.strides))
    if stored.device.type != "cpu" or not all(type(size) is int for size in (*shape, *stride)):
        return by_dispatch(deserializer, stored)
    dtype, device = serialize._SERIALIZE_TO_TORCH_DTYPE[stored.dtype], serialize.deserialize_device(stored.device)
    return Layout(dtype, device, shape, stride, stored.requires_grad).tensor(deserializer.fake_tensor_mode)


def _end_views(program: ExportedProgram) -> None:
    """Make constants no views, as which the loader makes them: making a view fake takes twice as long."""
    import torch

    for tensors in (program._state_dict, program._constants):
        for name, tensor in tensors.items():
            if type(tensor) is torch.Tensor and tensor._is_view() and not tensor.requires_grad:
                alone = torch.empty(0, dtype=tensor.dtype)
                tensors[name] = alone.set_(
                    tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
                )


def _drop_derived_ranges(program: ExportedProgram) -> None:
    """Remove the range of `4*s0` that the loader adds to that of `s0`, because decomposition fails with it.

    Newly exported programs lack it too: it follows from the range of the symbol.
    """
    import sympy

    for node in program.graph.nodes:
        sizes = getattr(node.meta.get("val"), "shape", ())
        shape_env = next((size.node.shape_env for size in sizes if hasattr(size, "node")), None)
        if shape_env is not None:  # all nodes share one
            for expression in [key for key in shape_env.var_to_range if not isinstance(key, sympy.Symbol)]:
                del shape_env.var_to_range[expression]
            return


def _operator(namespace: Any, name: str) -> Any:
    """The operator `name`, e.g. `aten.linear.default`, in `namespace`."""
    for part in name.split("."):
        namespace = getattr(namespace, part)
    return namespace


def _restore_nodes(graph: torch.fx.Graph, stored: list[tuple[str, int | None]]) -> None:
    """Restore the order and debug handles of nodes, and drop nodes that the deserializer added.

    After an operator with several outputs, the deserializer adds a getitem for each output, used or not.
    """
    by_name = {node.name: node for node in graph.nodes}
    names = {name for name, _ in stored}
    for node in reversed(list(graph.nodes)):
        if node.name not in names:
            assert not node.users, f"{node.name} is used but was not stored"
            graph.erase_node(node)
    missing = names - by_name.keys()
    assert not missing, f"lost while storing the edge program: {sorted(missing)}"
    previous = None
    for name, debug_handle in stored:
        node = by_name[name]
        if debug_handle is not None:
            node.meta["debug_handle"] = debug_handle
        if previous is not None:
            previous.append(node)
        previous = node
    graph.lint()


def _canonical_model(record: bytes) -> bytes:
    """The serialized graph without details that vary between processes, folders and installations."""
    model = json.loads(record)
    numbered: dict[re.Pattern[str], dict[str, str]] = {_GRAPH_ID: {}, _GENERATED_CODE: {}, _ADDRESS: {}}

    def renumbered(pattern: re.Pattern[str], template: str, text: str) -> str:
        known = numbered[pattern]
        return pattern.sub(lambda match: known.setdefault(match[0], template.format(len(known))), text)

    for node in _nodes(model["graph_module"]["graph"]):
        metadata = node["metadata"]
        _drop_traces_of_dynamo(metadata)
        for key, text in metadata.items():
            if key == "from_node":
                text = renumbered(_GRAPH_ID, '"graph_id": {}', text)
            elif key == "stack_trace":
                text = renumbered(_GENERATED_CODE, "<eval_with_key>.{}", relative_stack_trace(text))
            metadata[key] = renumbered(_ADDRESS, "0x{:06x}", text)
    return json.dumps(model, separators=(",", ":")).encode()


def _drop_traces_of_dynamo(metadata: dict[str, str]) -> None:
    """Drop what Dynamo adds to nodes only when it first traces a function in a process."""
    if "custom" not in metadata:
        return
    custom = {key: value for key, value in json.loads(metadata["custom"]).items() if not key.startswith(_DYNAMO)}
    if custom:
        metadata["custom"] = json.dumps(custom)
    else:
        del metadata["custom"]


def _nodes(graph: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The nodes of a serialized graph, including graphs nested in arguments (control flow)."""
    for node in graph["nodes"]:
        yield node
        for argument in node["inputs"]:
            nested = argument["arg"].get("as_graph")
            if nested is not None:
                yield from _nodes(nested["graph"])


def _register_edge_operators() -> None:
    """Register the operators of the edge dialect with torch's serializer; further calls have no effect."""
    from executorch.exir.dialects._ops import ops
    from executorch.exir.dialects.edge._ops import EdgeOpOverload
    from torch._export.serde import serialize

    if EdgeOpOverload in serialize._serialization_registry:
        return

    class EdgeOperatorHandler(serialize.ExtensionHandler):
        @classmethod
        def namespace(cls) -> str:
            return "executorch_edge"

        @classmethod
        def to_op_name(cls, op: Any) -> str:
            return str(op._op)

        @classmethod
        def from_op_name(cls, name: str) -> Any:
            return _operator(ops.edge, name)

        @classmethod
        def op_schema(cls, op: Any) -> Any:
            return op._schema

    serialize.register_extension(EdgeOpOverload, EdgeOperatorHandler)
