"""Outputs of the float and the quantized program, and the table of layers."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import require_file, write_bytes, write_table
from lowerdeck.contracts.evaluation import LayerMetrics, Outputs


def write_baseline(outputs: Outputs, samples: Sequence[int], layers: Sequence[LayerMetrics]) -> None:
    """Write the reference of the `.pte`: outputs of the float and the quantized program, and the table of layers.

    Args:
        outputs: Outputs of both programs.
        samples: Indices into the evaluation split of the samples used.
        layers: The quantized program compared with the float program.
    """
    import numpy as np
    from safetensors.numpy import save

    tensors: dict[str, Any] = {f"logits.{name}": np.ascontiguousarray(array) for name, array in outputs.logits.items()}
    tensors["samples"] = np.array(samples, dtype=np.int64)
    if outputs.labels is not None:
        tensors["labels"] = outputs.labels
    about = {"structural": outputs.structural, "output_lsb": outputs.output_lsb}
    write_bytes(paths.BASELINE, save(tensors, metadata={"about": json.dumps(about, sort_keys=True)}))
    columns = [field.name for field in dataclasses.fields(LayerMetrics)]
    write_table(paths.LAYERS, columns, [tuple(dataclasses.asdict(layer).values()) for layer in layers])


def read_baseline() -> tuple[Outputs, list[int]]:
    """The outputs that `write_baseline` wrote, and the indices of their samples."""
    from safetensors import safe_open

    with safe_open(require_file(paths.BASELINE), framework="numpy") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        about = json.loads(file.metadata()["about"])
    outputs = Outputs(
        labels=tensors.get("labels"),
        logits={name.partition(".")[2]: array for name, array in tensors.items() if name.startswith("logits.")},
        **about,
    )
    return outputs, [int(index) for index in tensors["samples"]]


def read_layers(path: Path) -> list[LayerMetrics]:
    """The layers in the CSV at `path`, worst first; empty where nothing is quantized."""
    with path.open(newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    for row in rows:
        lsb = float(row["lsb"]) if row["lsb"] else None
        row |= {"lsb": lsb, "num_samples": int(row["num_samples"]), "sqnr_db": float(row["sqnr_db"])}
    return [LayerMetrics(**row) for row in rows]
