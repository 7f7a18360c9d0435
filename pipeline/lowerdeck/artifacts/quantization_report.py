"""The quantized tensors of a program."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import as_written, read_json, write_json_rows
from lowerdeck.artifacts.observers import read_observed
from lowerdeck.contracts.evaluation import QuantizationLoss
from lowerdeck.contracts.quantization import QuantizedTensor


def write_quantization_report(tensors: Sequence[QuantizedTensor], loss: QuantizationLoss | None = None) -> None:
    """Write all quantized tensors with their representable ranges, clipped shares, and what is lost at them.

    Args:
        tensors: All quantized tensors.
        loss: Where the program departs from the float one; None where it is near it.
    """
    lossy = {} if loss is None else {layer.node: dataclasses.asdict(layer) for layer in loss.layers}
    report = []
    for tensor in tensors:
        seen = tensor.observed
        derived = {
            "representable": tensor.representable,
            "clipped_share": seen.clipped_share if seen else None,
            "loss": lossy.get(tensor.node),
        }
        report.append(dataclasses.asdict(tensor) | derived)
    write_json_rows(paths.QUANTIZATION_REPORT, report)


def read_quantization_report() -> list[QuantizedTensor]:
    """The tensors that `write_quantization_report` wrote; empty if nothing is quantized."""
    names = [field.name for field in dataclasses.fields(QuantizedTensor)]
    tensors, stored = [], read_json(paths.QUANTIZATION_REPORT, list)
    with as_written(paths.QUANTIZATION_REPORT):
        for entry in stored:
            values = {name: entry[name] for name in names}
            values["observed"] = read_observed(entry["observed"]) if entry["observed"] else None
            for name in ("scales", "zero_points"):
                values[name] = tuple(entry[name])
            tensors.append(QuantizedTensor(**values))
    return tensors
