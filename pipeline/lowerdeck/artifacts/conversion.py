"""Outputs of convert: the `.pte`, its data files, host twins and reports, and the manifest that lists them."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import (
    naming_file,
    read_json,
    replace_folder,
    require_file,
    sha256,
    together,
    write_bytes,
    write_json,
    write_text,
)
from lowerdeck.artifacts.plans import write_plan
from lowerdeck.contracts.conformance import ErrorUnit, OutputError
from lowerdeck.contracts.converter import Converter
from lowerdeck.fingerprints.versions import lowering_versions

if TYPE_CHECKING:
    from lowerdeck.formats.method_memory import WorkingMemory
    from lowerdeck.steps.convert import Converted
    from lowerdeck.steps.convert_conforming import ConvertedConforming


_TWIN_SUFFIXES = {"litert": ".tflite", "tosa": ".tosa"}


@contextmanager
def converter_folder() -> Iterator[Path]:
    """An empty working folder for converters; it stays if the block fails, so that messages can refer to its files."""
    shutil.rmtree(paths.CONVERTER_WORK, ignore_errors=True)
    paths.CONVERTER_WORK.mkdir(parents=True)
    with naming_file(paths.CONVERTER_WORK):
        yield paths.CONVERTER_WORK
    shutil.rmtree(paths.CONVERTER_WORK)


@together()
def write_converted(converted: Converted, converter: Converter, checked: ConvertedConforming | None = None) -> None:
    """Write plan, program with its data files, reports and host twins, and last the manifest with their digests.

    Args:
        converted: The program.
        converter: What made it.
        checked: Its plan, and how its partitions compare with what they replace; None where they were not executed.
    """
    kernels = {} if checked is None else _kernels(checked)
    if checked is not None:
        write_plan(checked.plan)
    partitions = []
    with replace_folder(paths.TWINS) as folder:
        for index, partition in enumerate(converted.partitions):
            twin = None
            if partition.twin is not None and partition.twin_format is not None:
                twin = f"partition_{index}{_TWIN_SUFFIXES[partition.twin_format]}"
                write_bytes(folder / twin, partition.twin)
            partitions.append(
                {
                    "payload_sha256": _sha256(partition.payload),
                    "payload_bytes": len(partition.payload),
                    "twin": twin,
                    "twin_sha256": _sha256(partition.twin) if partition.twin is not None else None,
                    "estimates": dict(partition.estimates),
                    "scratch_bytes": partition.scratch_bytes,
                    "transposes": partition.transposes,
                    "kernels": kernels.get(partition.payload, {}),
                }
            )
        if not any(partition["twin"] for partition in partitions):
            # DVC warns about an output that is an empty folder.
            write_text(folder / "README.txt", "The partitions of this program have no host twins.\n")
    _write_reports(converted)
    with replace_folder(paths.DATA_FILES) as folder:
        for name, content in converted.data_files.items():
            write_bytes(folder / name, content)
        if not converted.data_files:
            write_text(folder / "README.txt", "This program holds all of its data itself.\n")
    write_bytes(paths.PROGRAM, converted.program)
    manifest = {
        "program": _described(converted.program),
        "data_files": {name: _described(content) for name, content in converted.data_files.items()},
        "reports": {name: _sha256(content) for name, content in converted.reports.items()},
        "converter": dataclasses.asdict(converter) | {"caveat": converter.caveat},
        "delegates": list(converted.delegates),
        "operators": list(converted.operators),
        "kernel_definitions": list(converted.kernel_definitions),
        "planned_memory_bytes": converted.planned_memory_bytes,
        "working_memory": _working_memory(converted.working_memory),
        "inputs": [dataclasses.asdict(tensor) for tensor in converted.inputs],
        "outputs": [dataclasses.asdict(tensor) for tensor in converted.outputs],
        "output_scales": list(converted.output_scales),
        "estimates": converted.estimates,
        "partitions": partitions,
        "instructions": {str(index): list(nodes) for index, nodes in converted.instructions.items()},
        "versions": lowering_versions(),
        "conformance": None if checked is None else _conformance(checked),
        "planned_sha256": None if checked is None else sha256(paths.PLANNED),
    }
    write_json(paths.MANIFEST, manifest)


def _working_memory(memory: WorkingMemory | None) -> dict[str, Any] | None:
    return None if memory is None else dataclasses.asdict(memory) | {"known_bytes": memory.known_bytes}


def _kernels(checked: ConvertedConforming) -> dict[bytes, dict[str, Any]]:
    """Payload -> the worst error by each set of kernels that its host twin was executed by."""
    payloads = {part.tag: part.payload for part in checked.converted.replaced}
    return {
        payloads[found.partition]: {
            name: _output_error(worst) | {"agrees": worst.excess <= 1} for name, worst in found.kernels.items()
        }
        for found in checked.partitions
    }


def _conformance(checked: ConvertedConforming) -> dict[str, Any]:
    partitions = [
        {
            "partition": found.partition,
            "depth": found.depth,
            "conforms": found.conforms,
            "accumulates": found.partition in checked.accumulating,
            "outputs": [_output_error(output) for output in found.outputs],
        }
        for found in checked.partitions
    ]
    outputs = [_output_error(error) for error in checked.outputs]
    return {"partitions": partitions, "program": outputs, "unchecked": list(checked.unchecked)}


def _output_error(error: OutputError) -> dict[str, Any]:
    return {
        "output": error.output,
        "unit": str(error.unit),
        "max_error": _rounded(error.max_error, error.unit),
        "mean_error": _rounded(error.mean_error, error.unit),
        "bound": round(error.bound, 4),
    }


def _rounded(error: float, unit: ErrorUnit) -> float | None:
    """`error` without the digits that depend on the host's processor; None where it is infinite."""
    if not math.isfinite(error):
        return None
    if unit is ErrorUnit.LSB:
        return round(error, 2)
    return float(f"{error:.0e}") if error >= 1e-4 else 0.0


@dataclass(frozen=True, kw_only=True)
class LayerEstimate:
    """What a compiler estimates for one layer of a partition."""

    name: str
    cycles: int
    sram_bytes: int


def read_layer_estimates() -> list[LayerEstimate]:
    """The layers in the per-layer tables among the converter's reports, which Vela writes; empty without any."""
    found = []
    for path in sorted(paths.REPORTS.glob("*/*per-layer*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if row.get("Name") and row.get("Op Cycles"):
                    sram = float(row.get("Staging Usage") or row.get("SRAM Usage") or 0)
                    cycles = round(float(row["Op Cycles"]))
                    found.append(LayerEstimate(name=row["Name"], cycles=cycles, sram_bytes=round(sram)))
    return found


def read_companions() -> dict[str, bytes]:
    """The manifest and the host twins that it names, by path, as `lowerdeck run` looks for them beside a program.

    Raises:
        LowerdeckError: a file is missing.
    """
    twins = [partition["twin"] for partition in read_json(paths.MANIFEST)["partitions"] if partition["twin"]]
    found = {f"{paths.TWINS.name}/{name}": require_file(paths.TWINS / name).read_bytes() for name in twins}
    return {paths.MANIFEST.name: require_file(paths.MANIFEST).read_bytes(), **found}


def read_data_files() -> dict[str, bytes]:
    """The data files that the converted program reads, by name."""
    names = read_json(paths.MANIFEST)["data_files"]
    return {name: require_file(paths.DATA_FILES / name).read_bytes() for name in names}


def read_kernel_selection() -> bytes | None:
    """C source that names the NPU's kernels to link; None where the converter wrote none."""
    return paths.KERNEL_SELECTION.read_bytes() if paths.KERNEL_SELECTION.is_file() else None


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _described(content: bytes) -> dict[str, Any]:
    return {"sha256": _sha256(content), "bytes": len(content)}


def _write_reports(converted: Converted) -> None:
    """Write the converter's reports: a folder per partition, and files on the whole program."""
    with replace_folder(paths.REPORTS) as folder:
        for index, partition in enumerate(converted.partitions):
            for name, content in partition.reports.items():
                write_bytes(folder / f"partition_{index}" / name, content)
        if converted.etrecord is not None:
            write_bytes(folder / paths.ETRECORD_NAME, converted.etrecord)
        for name, content in converted.reports.items():
            write_bytes(folder / name, content)
        if not any(folder.iterdir()):
            write_text(folder / "README.txt", "The compiler of this program writes no reports.\n")
