"""Outputs of the float and the quantized program, and the table of layers."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import as_written, read_table, replacing_file, require_file, together, write_table
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.evaluation import LayerMetrics, Outputs, OutputSpec, SampleOutputs

_SAMPLES = "samples"


def write_baseline(
    outputs: Iterable[SampleOutputs],
    specs: Sequence[OutputSpec],
    samples: Sequence[int],
    layers: Sequence[LayerMetrics],
    executed_by: str,
    differences: Sequence[str] = (),
) -> None:
    """Write the reference of the `.pte`: outputs of the float and the quantized program, and the table of layers.

    Differences between batches and single samples are shown.

    Args:
        outputs: Outputs of both programs, one sample after the other; each is written before the next is computed.
        specs: The outputs.
        samples: Indices into the evaluation split of the samples used, in the order of `outputs`.
        layers: The quantized program compared with the float program.
        executed_by: Who executes the programs, and whether in batches.
        differences: What differs in batches, so that samples are executed one by one.

    Raises:
        LowerdeckError: an output has another shape for one sample than for another.
    """
    from lowerdeck.formats import tensor_rows
    from lowerdeck.formats.tensor_rows import RowSpec

    columns = [field.name for field in dataclasses.fields(LayerMetrics)]
    with together(), replacing_file(paths.BASELINE) as temporary:
        write_table(paths.LAYERS, columns, [tuple(dataclasses.asdict(layer).values()) for layer in layers])
        tensors: dict[str, Any] = {}
        for row, sample in enumerate(outputs):
            values = _named(sample, specs)
            if not tensors:
                shapes = {
                    name: RowSpec(shape=(len(samples), *value.shape), dtype=value.dtype.name)
                    for name, value in values.items()
                }
                shapes[_SAMPLES] = RowSpec(shape=(len(samples),), dtype="int64")
                about = {"outputs": [dataclasses.asdict(spec) for spec in specs], "executed_by": executed_by}
                tensors = tensor_rows.create(temporary, shapes, {"about": json.dumps(about, sort_keys=True)})
                tensors[_SAMPLES][:] = samples
            for name, value in values.items():
                if value.shape != tensors[name].shape[1:]:
                    raise LowerdeckError(
                        f"{name} has shape {list(value.shape)} for sample {samples[row]}, and "
                        f"{list(tensors[name].shape[1:])} for the first; a program's outputs have one shape"
                    )
                tensors[name][row] = value
    for difference in differences:
        print(f"baseline: sample by sample, because batches compute something else: {difference}", file=sys.stderr)


def _named(sample: SampleOutputs, specs: Sequence[OutputSpec]) -> dict[str, Any]:
    """The outputs of a sample by program and name."""
    return {
        f"{program}/{spec.name}": value
        for program, outputs in sample.values.items()
        for spec, value in zip(specs, outputs, strict=True)
    }


def read_baseline() -> tuple[Outputs, list[int]]:
    """The outputs that `write_baseline` wrote, left on disk until they are used, and the indices of their samples."""
    from lowerdeck.formats import tensor_rows

    require_file(paths.BASELINE)
    with as_written(paths.BASELINE):
        return _outputs_of(*tensor_rows.open_rows(paths.BASELINE))


def _outputs_of(tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> tuple[Outputs, list[int]]:
    """Outputs and indices of samples from the tensors of a file and its metadata."""
    about = json.loads(metadata["about"])
    specs = tuple(
        OutputSpec(**spec | {"masked_numbers": tuple(map(tuple, spec.get("masked_numbers", ())))})
        for spec in about["outputs"]
    )
    programs = dict.fromkeys(name.partition("/")[0] for name in tensors if name != _SAMPLES)
    values = {program: {spec.name: tensors[f"{program}/{spec.name}"] for spec in specs} for program in programs}
    return Outputs(specs=specs, values=values, executed_by=about.get("executed_by", "unknown")), [
        int(index) for index in tensors[_SAMPLES]
    ]


def read_layers(path: Path) -> list[LayerMetrics]:
    """The layers in the CSV at `path`, worst first; empty where nothing is quantized.

    Raises:
        LowerdeckError: the file is missing or damaged.
    """

    def parsed(row: Mapping[str, Any]) -> LayerMetrics:
        lsb = float(row["lsb"]) if row["lsb"] else None
        return LayerMetrics(
            **{**row, "lsb": lsb, "num_samples": int(row["num_samples"]), "sqnr_db": float(row["sqnr_db"])}
        )

    return read_table(path, parsed)
