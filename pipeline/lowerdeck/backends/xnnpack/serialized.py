"""Reads the XNNGraph in the payload of a partition."""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executorch.backends.xnnpack.serialization.xnnpack_graph_serialize import XNNHeader, _get_schema_bytes
from executorch.exir._serialize._flatbuffer import _flatc_decompile


@dataclass(frozen=True)
class SerializedGraph:
    """One partition."""

    operators: list[str]
    """E.g. `XNNConv2d`, in order."""
    inputs: list[str]
    """Element types of its inputs at run time, e.g. `fp32` or `qint8`, in order of the values."""
    outputs: list[str]
    constants: list[str]
    """Element types of its packed constants."""
    dtypes: set[str]
    """Element types of all values."""
    arithmetic: list[tuple[str, str, str]]
    """Every operator with the element types of its first input and of its output, in order."""


def read_graph(payload: bytes) -> SerializedGraph:
    """Read the graph in a partition's processed bytes, serialized by the installed ExecuTorch."""
    header = XNNHeader.from_bytes(payload[: XNNHeader.EXPECTED_LENGTH])
    assert header.is_valid()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "schema.fbs").write_bytes(_get_schema_bytes())
        graph = payload[header.flatbuffer_offset : header.flatbuffer_offset + header.flatbuffer_size]
        (Path(folder) / "graph.bin").write_bytes(graph)
        _flatc_decompile(folder, f"{folder}/schema.fbs", f"{folder}/graph.bin", ["--defaults-json"])
        # Bounds of activations may be infinite; flatc writes `inf`, Python reads `Infinity`.
        decoded = json.loads(re.sub(r"\binf\b", "Infinity", (Path(folder) / "graph.json").read_text(encoding="utf-8")))
    values = [_tensor(value["xvalue_union"]) for value in decoded["xvalues"]]
    flags = (("input", 1), ("output", 2))  # XNN_VALUE_FLAG_EXTERNAL_INPUT and _OUTPUT
    external = {number: kind for kind, flag in flags for number, value in enumerate(values) if value["flags"] & flag}
    names = [node["xnode_union_type"].replace("_XNN", "XNN") for node in decoded["xnodes"]]
    return SerializedGraph(
        operators=names,
        inputs=[_dtype(value) for index, value in enumerate(values) if external.get(index) == "input"],
        outputs=[_dtype(value) for index, value in enumerate(values) if external.get(index) == "output"],
        constants=[_dtype(value) for value in values if value["constant_buffer_idx"]],
        dtypes={_dtype(value) for value in values},
        arithmetic=[
            (name, _dtype(values[_first_input(node["xnode_union"])]), _dtype(values[node["xnode_union"]["output_id"]]))
            for name, node in zip(names, decoded["xnodes"], strict=True)
        ],
    )


def _first_input(node: dict[str, int]) -> int:
    """`input_id`, or `input1_id` of operators with several inputs."""
    return node["input_id"] if "input_id" in node else node["input1_id"]


def _tensor(value: dict[str, Any]) -> dict[str, Any]:
    tensor: dict[str, Any] = value.get("tensor_value", value)
    return tensor


def _dtype(value: dict[str, Any]) -> str:
    return str(value["datatype"]).removeprefix("xnn_datatype_")
