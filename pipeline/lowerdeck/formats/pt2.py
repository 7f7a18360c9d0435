"""Exported programs as `.pt2` files whose bytes depend on the program alone.

`torch.export.save` is not byte-stable: provenance metadata carries the `id()` of graphs and objects, stack traces carry
absolute paths, and the archive's root is named after the file. DVC compares bytes, so all of these are made canonical:
ids are renumbered in order of appearance, paths are cut to what follows `site-packages/` or the working directory, and
the root is always `archive`. The provenance itself is kept: XNNPACK's lowering depends on it.

Edge-dialect programs (the result of `to_edge` and its passes) are stored in the same format, although ExecuTorch has no
file format of its own for them: their operators are registered with torch's serializer, and what the serializer drops
is restored on loading. That relies on semi-private interfaces of the pinned versions; tests hold the `.pte` made
through the file against the one made without it.
"""

from __future__ import annotations

import io
import json
import re
import types
import typing
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from lowerdeck.compat.fast_graph_passes import fast_graph_passes
from lowerdeck.compat.pytorch import SERIALIZER_TYPING
from lowerdeck.graph.source_lines import relative_path

if TYPE_CHECKING:
    import torch
    from executorch.exir import EdgeCompileConfig, EdgeProgramManager
    from torch.export import ExportedProgram

_EDGE_EXTRAS = "edge.json"
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
_GRAPH_ID = re.compile(r'"graph_id": (\d+)')
_GENERATED_CODE = re.compile(r"<eval_with_key>\.\d+")
_SOURCE_FILE = re.compile(r'File "([^"]+)"')
_DYNAMO = "_torchdynamo_"
_PER_ARCHIVE = (".data/version", ".data/serialization_id", "byteorder")


def save(program: ExportedProgram, file: IO[bytes], extra_files: dict[str, str] | None = None) -> None:
    """Write `program` to `file`, the same bytes for the same program in every process and folder.

    Args:
        program: ATen-dialect program; for an edge-dialect program there is `save_edge`.
        file: Binary file, open for writing.
        extra_files: Text to store beside the program, by name.
    """
    import torch

    buffer = io.BytesIO()
    with fast_graph_passes():
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
    """Write an edge program, to be read back with `load_edge`.

    Args:
        program: Edge-dialect program, not yet lowered to a backend.
        config: What it was made with; `to_edge_transform_and_lower` noted in it what it kept whole.
        file: Binary file, open for writing.
    """
    _register_edge_operators()
    kept = {
        # The serializer keeps neither the nodes' order nor their debug handles, and both end up in the `.pte`.
        "nodes": [[node.name, node.meta.get("debug_handle")] for node in program.graph.nodes],
        # Among them operators that the partitioner kept whole: the edge verifier has to allow them again.
        "config": {
            "_check_ir_validity": config._check_ir_validity,
            "_skip_dim_order": config._skip_dim_order,
            "_core_aten_ops_exception_list": sorted(str(op) for op in config._core_aten_ops_exception_list),
            "preserve_ops": sorted(str(op) for op in config.preserve_ops),
        },
    }
    save(program, file, {_EDGE_EXTRAS: json.dumps(kept)})


def load_edge(path: Path) -> EdgeProgramManager:
    """The edge program that `save_edge` wrote to `path`, ready for `to_backend`."""
    import torch
    from executorch.exir import EdgeCompileConfig, EdgeProgramManager
    from executorch.exir.verification.verifier import EXIREdgeDialectVerifier

    with zipfile.ZipFile(path) as archive:
        kept = json.loads(archive.read(f"archive/extra/{_EDGE_EXTRAS}"))
    config = EdgeCompileConfig(
        **{
            name: [_operator(torch.ops, op) for op in value] if isinstance(value, list) else value
            for name, value in kept["config"].items()
        }
    )
    _register_quantization(path)
    _register_edge_operators()
    verifier = EXIREdgeDialectVerifier(edge_compile_config=config, class_only=True)  # registers the dialect for load
    program = _load(path)
    _restore_nodes(program.graph_module.graph, kept["nodes"])
    program.graph_module.recompile()
    program = program._update(program.graph_module, program.graph_signature, verifiers=[verifier])
    return EdgeProgramManager({"forward": program}, None, config)


def _register_quantization(path: Path) -> None:
    """Import what has registered the operators that the program at `path` quantizes with."""
    import torch.ao.quantization.fx._decomposed  # noqa: F401

    with zipfile.ZipFile(path) as archive:
        # Only then: the import takes two seconds.
        if b"torchao." in archive.read("archive/models/model.json"):
            import torchao.quantization.quant_primitives  # noqa: F401


def _load(path: Path) -> ExportedProgram:
    """torch.export.load, which asks for the type hints of a class only once."""
    import torch

    known: dict[Any, dict[str, Any]] = {}

    def get_type_hints(cls: Any, **namespaces: Any) -> dict[str, Any]:
        if cls not in known:
            known[cls] = typing.get_type_hints(cls, **namespaces)
        return known[cls]

    with SERIALIZER_TYPING.active(types.SimpleNamespace(**{**vars(typing), "get_type_hints": get_type_hints})):
        program = torch.export.load(path)
    _drop_derived_ranges(program)
    return program


def _drop_derived_ranges(program: ExportedProgram) -> None:
    """Forget the range of `4*s0` that the loader lists beside that of `s0`, because decomposing stumbles over it.

    A program that was just exported does not list it either: it follows from the range of the symbol.
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
    """The operator that `name`, e.g. `aten.linear.default`, means below `namespace`."""
    for part in name.split("."):
        namespace = getattr(namespace, part)
    return namespace


def _restore_nodes(graph: torch.fx.Graph, stored: list[tuple[str, int | None]]) -> None:
    """Bring back the nodes' order and debug handles, and drop what the deserializer made up.

    For an operator with several outputs the deserializer makes one getitem for each, used or not, directly behind it.
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
    """The serialized graph without what varies between processes, folders and installations."""
    model = json.loads(record)
    graph_ids: dict[str, str] = {}
    addresses: dict[str, str] = {}
    generated: dict[str, str] = {}

    def renumbered_graph(match: re.Match[str]) -> str:
        number = graph_ids.setdefault(match[1], str(len(graph_ids)))
        return f'"graph_id": {number}'

    def renumbered_address(match: re.Match[str]) -> str:
        return addresses.setdefault(match[0], f"0x{len(addresses):06x}")

    def renumbered_code(match: re.Match[str]) -> str:  # torch counts the code that it generates in a process
        return generated.setdefault(match[0], f"<eval_with_key>.{len(generated)}")

    for node in _nodes(model["graph_module"]["graph"]):
        metadata = node["metadata"]
        _drop_traces_of_dynamo(metadata)
        for key, text in metadata.items():
            if key == "from_node":
                text = _GRAPH_ID.sub(renumbered_graph, text)
            elif key == "stack_trace":
                text = _GENERATED_CODE.sub(
                    renumbered_code, _SOURCE_FILE.sub(lambda path: f'File "{relative_path(path[1])}"', text)
                )
            metadata[key] = _ADDRESS.sub(renumbered_address, text)
    return json.dumps(model, separators=(",", ":")).encode()


def _drop_traces_of_dynamo(metadata: dict[str, str]) -> None:
    """Leave out what Dynamo notes at nodes when it traces a function for the first time in a process, and only then."""
    if "custom" not in metadata:
        return
    kept = {key: value for key, value in json.loads(metadata["custom"]).items() if not key.startswith(_DYNAMO)}
    if kept:
        metadata["custom"] = json.dumps(kept)
    else:
        del metadata["custom"]


def _nodes(graph: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every node of a serialized graph and of the graphs nested in its arguments (control flow)."""
    for node in graph["nodes"]:
        yield node
        for argument in node["inputs"]:
            nested = argument["arg"].get("as_graph")
            if nested is not None:
                yield from _nodes(nested["graph"])


def _register_edge_operators() -> None:
    """Teach torch's serializer the operators of the edge dialect; calling it again does nothing."""
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
