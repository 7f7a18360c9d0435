"""The quantized tensors of a program, and where it departs from the float one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import as_written, read_json, write_text
from lowerdeck.artifacts.observers import read_observed
from lowerdeck.contracts.evaluation import LossyLayer, QuantizationLoss
from lowerdeck.contracts.quantization import QuantizedTensor


def write_quantization_report(tensors: Sequence[QuantizedTensor], loss: QuantizationLoss | None = None) -> None:
    """Write all quantized tensors with their representable ranges and clipped shares, and what is lost.

    Args:
        tensors: All quantized tensors.
        loss: Where the program departs from the float one; None where it is near it.
    """
    rows = []
    for tensor in tensors:
        seen = tensor.observed
        derived = {"representable": tensor.representable, "clipped_share": seen.clipped_share if seen else None}
        rows.append(_text(dataclasses.asdict(tensor) | derived))
    found = _text(None if loss is None else dataclasses.asdict(loss))
    lines = ",\n".join(rows)  # a line for each tensor: indented, many scales would take several times as long
    write_text(paths.QUANTIZATION_REPORT, f'{{"loss": {found}, "tensors": [\n{lines}\n]}}\n')


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)


def read_quantization_report() -> list[QuantizedTensor]:
    """The tensors that `write_quantization_report` wrote; empty if nothing is quantized."""
    names = [field.name for field in dataclasses.fields(QuantizedTensor)]
    tensors, stored = [], read_json(paths.QUANTIZATION_REPORT)["tensors"]
    with as_written(paths.QUANTIZATION_REPORT):
        for entry in stored:
            values = {name: entry[name] for name in names}
            values["observed"] = read_observed(entry["observed"]) if entry["observed"] else None
            for name in ("scales", "zero_points"):
                values[name] = tuple(entry[name])
            tensors.append(QuantizedTensor(**values))
    return tensors


def read_quantization_loss() -> QuantizationLoss | None:
    """What `write_quantization_report` wrote of the whole program; None where it is near the float one."""
    stored = read_json(paths.QUANTIZATION_REPORT)["loss"]
    with as_written(paths.QUANTIZATION_REPORT):
        if stored is None:
            return None
        layers = tuple(LossyLayer(**entry | {"ways_out": tuple(entry["ways_out"])}) for entry in stored["layers"])
        return QuantizationLoss(**stored | {"layers": layers})
