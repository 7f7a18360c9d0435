"""Files that stages hand to one another: the only module that knows their names and formats.

Everything is written to a temporary name beside its place and moved there, so that a stage that fails or is killed
leaves what was there before. JSON has sorted keys and no time stamps: the same build gives the same bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import io
import json
import os
import shutil
import tempfile
import zipfile
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowerdeck.contracts import (
    ClassFigures,
    Converter,
    DelegationPlan,
    LayerFigures,
    LowerdeckError,
    ObservedRange,
    ObserverState,
    Outputs,
    PlannedNode,
    PlannedTensor,
    QuantizedTensor,
    Reason,
    ReasonCode,
)
from lowerdeck.evaluation.intervals import HIGH, LOW, wilson_interval

if TYPE_CHECKING:
    import torch
    from executorch.exir import EdgeCompileConfig, EdgeProgramManager
    from torch.export import ExportedProgram

    from lowerdeck.quantization.sensitivity import Measured
    from lowerdeck.runtime import Resolver
    from lowerdeck.runtime.floats import FloatProgram
    from lowerdeck.steps.convert import Converted

BUILD = Path("build")
CONFIG = BUILD / "config.yaml"
EXPORTED = BUILD / "export" / "program.pt2"
OBSERVERS = BUILD / "calibrate" / "observers.safetensors"
OBSERVED_RANGES = BUILD / "calibrate" / "ranges.json"
CALIBRATION_SAMPLES = BUILD / "calibrate" / "samples.json"
QUANTIZED = BUILD / "quantize" / "program.pt2"
QUANTIZATION_REPORT = BUILD / "quantize" / "report.json"
EDGE = BUILD / "partition" / "edge.pt2"
EDGE_RECEIPT = BUILD / "partition" / "receipt.json"
PLAN = BUILD / "partition" / "plan.json"
CONVERTED = BUILD / "convert"
PROGRAM = CONVERTED / "program.pte"
MANIFEST = CONVERTED / "manifest.json"
TWINS = CONVERTED / "twins"
REPORTS = CONVERTED / "reports"
ETRECORD_NAME = "etrecord.bin"
KERNEL_SELECTION = REPORTS / "kernel_selection.c"
DATA_FILES = CONVERTED / "data"
CONVERTER_WORK = BUILD / "converter"
BASELINE = BUILD / "baseline" / "outputs.safetensors"
LAYERS = BUILD / "baseline" / "layers.csv"
EVALUATED = BUILD / "evaluate"
METRICS = EVALUATED / "metrics.json"
CONFUSION = EVALUATED / "confusion.csv"
CLASSES = EVALUATED / "classes.csv"
EVALUATION_SAMPLES = EVALUATED / "samples.json"
TRAINING = BUILD / "training"
SENSITIVITY = BUILD / "sensitivity"
FIRMWARE = BUILD / "firmware"
FIRMWARE_ZIP = BUILD / "firmware.zip"
LINEAGE = BUILD / "track" / "lineage.json"
RECORDED = BUILD / "recorded.json"
"""Git does not keep it, unlike lineage.json: a clone has no MLflow runs, and does not take its build for recorded."""
REPORT = BUILD / "report.html"
COMPARISON = BUILD / "compare.html"
EXPLANATION = BUILD / "explain.html"
MODEL_EXPLORER = BUILD / "model_explorer.json"
SWEEP_TAGS = BUILD / "sweep.json"

_TRAINED = "trained/"
"""Begins the names of trained weights among the tensors of observers."""
_TWIN_SUFFIXES = {"litert": ".tflite", "tosa": ".tosa"}


def write_bytes(path: Path, content: bytes) -> None:
    """Put `content` at `path`, all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o644)  # mkstemp makes files that only their owner can read
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Put `text` at `path` in UTF-8, all of it or nothing."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Put `value` at `path` as indented JSON with sorted keys; NaN and infinities are refused."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """The JSON at `path`.

    Raises:
        LowerdeckError: it is not there; names the stage that writes it.
    """
    return json.loads(existing(path).read_text())


@contextmanager
def replaced_folder(path: Path) -> Iterator[Path]:
    """A new folder that takes the place of `path` when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        temporary.chmod(0o755)
        yield temporary
        discarded = temporary.with_name(temporary.name + ".old")
        if path.exists():
            os.replace(path, discarded)
        os.replace(temporary, path)
        shutil.rmtree(discarded, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sha256(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with existing(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_program(path: Path, program: ExportedProgram) -> None:
    """An ATen exported program, in bytes that depend on nothing else."""
    from lowerdeck.formats import pt2

    buffer = io.BytesIO()
    pt2.save(program, buffer)
    write_bytes(path, buffer.getvalue())


def read_program(path: Path) -> ExportedProgram:
    """The ATen exported program at `path`."""
    from lowerdeck.formats import pt2

    return pt2.load(existing(path))


def write_observers(state: ObserverState) -> None:
    """What calibration found: the buffers of observers, the layout that they belong to, and what they saw."""
    from safetensors.torch import save

    write_json(OBSERVED_RANGES, {name: dataclasses.asdict(seen) for name, seen in state.ranges.items()})
    tensors = state.tensors | {_TRAINED + name: tensor for name, tensor in state.trained.items()}
    write_bytes(OBSERVERS, save(dict(sorted(tensors.items())), metadata={"layout": state.layout}))


def read_observers() -> ObserverState:
    """The state that `write_observers` wrote."""
    from safetensors import safe_open

    ranges = {name: ObservedRange(**seen) for name, seen in read_json(OBSERVED_RANGES).items()}
    with safe_open(existing(OBSERVERS), framework="pt") as file:
        layout = (file.metadata() or {}).get("layout", "")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    trained = {name.removeprefix(_TRAINED): tensors.pop(name) for name in list(tensors) if name.startswith(_TRAINED)}
    return ObserverState(tensors=tensors, layout=layout, ranges=ranges, trained=trained)


def write_quantization_report(tensors: Sequence[QuantizedTensor]) -> None:
    """All tensors that are held in integers, with what their scales and ranges come to."""
    report = []
    for tensor in tensors:
        seen = tensor.observed
        derived = {"representable": tensor.representable, "clipped_share": seen.clipped_share if seen else None}
        report.append(dataclasses.asdict(tensor) | derived)
    write_json(QUANTIZATION_REPORT, report)


def read_quantization_report() -> list[QuantizedTensor]:
    """The tensors that `write_quantization_report` wrote; empty where nothing is quantized."""
    names = [field.name for field in dataclasses.fields(QuantizedTensor)]
    tensors = []
    for entry in read_json(QUANTIZATION_REPORT):
        values = {name: entry[name] for name in names}
        values["observed"] = ObservedRange(**entry["observed"]) if entry["observed"] else None
        for name in ("scales", "zero_points"):
            values[name] = tuple(entry[name])
        tensors.append(QuantizedTensor(**values))
    return tensors


class TrainingCheckpoints:
    """The last checkpoint of a training: tensors, and a JSON file that is written after them and names them.

    It lies beside the outputs of stages, so that a killed training goes on; the stage removes it when it has succeeded.
    """

    def __init__(self, key: str) -> None:
        """`key` is a digest of all that the training depends on; a checkpoint of another key is not used."""
        self._key = key
        self._index = TRAINING / "checkpoint.json"

    def load(self) -> tuple[int, dict[str, torch.Tensor]] | None:
        """Finished epochs and the tensors after them, None where there is no sound checkpoint of the same training."""
        from safetensors.torch import load

        if not self._index.is_file():
            return None
        index = read_json(self._index)
        path = TRAINING / index["tensors"]
        if index["key"] != self._key or not path.is_file() or sha256(path) != index["sha256"]:
            return None
        return index["epochs"], load(path.read_bytes())

    def save(self, epochs: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Write a checkpoint, and remove the one before."""
        from safetensors.torch import save

        path = TRAINING / f"epoch_{epochs}.safetensors"
        write_bytes(path, save(dict(tensors)))
        index = {"key": self._key, "epochs": epochs, "tensors": path.name, "sha256": sha256(path)}
        write_json(self._index, index)
        for other in TRAINING.glob("epoch_*.safetensors"):
            if other != path:
                other.unlink()


def remove_checkpoints() -> None:
    """Remove checkpoints of trainings: calibrate has succeeded."""
    shutil.rmtree(TRAINING, ignore_errors=True)


class Measurements(UserDict[str, "Measured"]):
    """What `lowerdeck sensitivity` has measured so far, written with every measurement, so that none is made twice."""

    def __init__(self, key: str) -> None:
        """`key` is a digest of all that the measurements depend on; those of the same key are read."""
        super().__init__()
        self._path = SENSITIVITY / f"{key[:32]}.json"
        if self._path.is_file():
            from lowerdeck.quantization.sensitivity import Measured

            for name, entry in read_json(self._path).items():
                hits = None if entry["hits"] is None else tuple(bit == "1" for bit in entry["hits"])
                self.data[name] = Measured(hits=hits, sqnr_db=entry["sqnr_db"])

    def __setitem__(self, name: str, measured: Measured) -> None:
        super().__setitem__(name, measured)
        entries = {}
        for known, entry in self.data.items():
            hits = None if entry.hits is None else "".join("01"[hit] for hit in entry.hits)
            entries[known] = {"hits": hits, "sqnr_db": entry.sqnr_db}
        write_json(self._path, entries)


def read_sweep_tags() -> dict[str, str]:
    """What the run of this build shall say of the sweep that it is a point of; empty outside of sweeps."""
    if not SWEEP_TAGS.is_file():
        return {}
    return {str(key): str(value) for key, value in read_json(SWEEP_TAGS).items()}


def write_edge_program(
    program: ExportedProgram, config: EdgeCompileConfig, made_of: str = "", options: Any = None, kept_whole: Any = None
) -> None:
    """The edge program between partition and convert, and a receipt for `read_edge_program_made_of`.

    Args:
        program: Edge-dialect program before lowering.
        config: What it was made with.
        made_of: Digest of what it was made of; empty where it is not known.
        options: Those that decide what the partitioner keeps whole.
        kept_whole: What it kept.
    """
    from lowerdeck.formats import pt2

    buffer = io.BytesIO()
    pt2.save_edge(program, config, buffer)
    write_bytes(EDGE, buffer.getvalue())
    receipt = {"made_of": made_of, "options": options, "kept_whole": kept_whole}
    # No output of the stage: DVC may put another build's program into its place, which the receipt then does not fit.
    write_json(EDGE_RECEIPT, receipt | {"sha256": hashlib.sha256(buffer.getvalue()).hexdigest()})


def read_edge_program() -> EdgeProgramManager:
    """The edge program that `write_edge_program` wrote."""
    from lowerdeck.formats import pt2

    return pt2.load_edge(existing(EDGE))


def read_edge_program_made_of(made_of: str, options: Any, kept_whole: Callable[[], Any]) -> EdgeProgramManager | None:
    """The edge program of an earlier build, where it was made of the very same and is there unchanged; else None.

    Args:
        made_of: As for `write_edge_program`.
        options: Likewise.
        kept_whole: Called where the options are others than they were: what the partitioner keeps whole now.
    """
    if not EDGE.is_file() or not EDGE_RECEIPT.is_file():
        return None
    receipt = read_json(EDGE_RECEIPT)
    if (receipt.get("made_of"), receipt.get("sha256")) != (made_of, sha256(EDGE)):
        return None
    if receipt["options"] != options and receipt["kept_whole"] != list(kept_whole()):
        return None
    return read_edge_program()


def write_plan(plan: DelegationPlan) -> None:
    """The delegation plan."""
    write_json(PLAN, dataclasses.asdict(plan))


def read_plan() -> DelegationPlan:
    """The delegation plan that `write_plan` wrote."""
    return plan_of(existing(PLAN).read_text(encoding="utf-8"), str(PLAN))


def plan_of(text: str, where: str) -> DelegationPlan:
    """The delegation plan that `text` holds, as `write_plan` writes it.

    Args:
        text: Content of a plan.json.
        where: Where it comes from, for the message.

    Raises:
        LowerdeckError: it is no plan, or one of another version of the project.
    """
    try:
        stored = json.loads(text)
        converter = Converter(**stored["converter"]) if stored["converter"] is not None else None
        nodes = tuple(_planned_node(node) for node in stored["nodes"])
        outputs = tuple(stored["outputs"])
        return DelegationPlan(backend=stored["backend"], nodes=nodes, outputs=outputs, converter=converter)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise LowerdeckError(
            f"{where} holds no delegation plan of this version ({type(error).__name__}: {error}); "
            "`dvc repro partition` makes one"
        ) from None


def _planned_node(stored: Mapping[str, Any]) -> PlannedNode:
    given = dict(stored)
    for name in ("inputs", "outputs"):
        given[name] = tuple(PlannedTensor(**tensor | {"shape": tuple(tensor["shape"])}) for tensor in given[name])
    if given["reason"] is not None:
        given["reason"] = Reason(**given["reason"] | {"code": ReasonCode(given["reason"]["code"])})
    return PlannedNode(**given)


@contextmanager
def converter_folder() -> Iterator[Path]:
    """An empty folder for converters to work in; it stays where the block fails, so that messages can point into it."""
    shutil.rmtree(CONVERTER_WORK, ignore_errors=True)
    CONVERTER_WORK.mkdir(parents=True)
    yield CONVERTER_WORK
    shutil.rmtree(CONVERTER_WORK)


def write_converted(converted: Converted, converter: Converter) -> None:
    """The program with its data files, reports and host twins, and the manifest that binds them by digest; it is
    written last."""
    partitions = []
    with replaced_folder(TWINS) as folder:
        for index, partition in enumerate(converted.partitions):
            twin = None
            if partition.twin is not None and partition.twin_format is not None:
                twin = f"partition_{index}{_TWIN_SUFFIXES[partition.twin_format]}"
                write_bytes(folder / twin, partition.twin)
            partitions.append(
                {
                    "payload_sha256": hashlib.sha256(partition.payload).hexdigest(),
                    "payload_bytes": len(partition.payload),
                    "twin": twin,
                    "twin_sha256": hashlib.sha256(partition.twin).hexdigest() if partition.twin is not None else None,
                    "estimates": dict(partition.estimates),
                    "scratch_bytes": partition.scratch_bytes,
                    "transposes": partition.transposes,
                }
            )
        if not any(partition["twin"] for partition in partitions):
            # DVC warns of an output that is an empty folder.
            write_text(folder / "README.txt", "The partitions of this program have no host twins.\n")
    _write_reports(converted)
    with replaced_folder(DATA_FILES) as folder:
        for name, content in converted.data_files.items():
            write_bytes(folder / name, content)
        if not converted.data_files:
            write_text(folder / "README.txt", "This program holds all of its data itself.\n")
    write_bytes(PROGRAM, converted.program)
    write_json(
        MANIFEST,
        {
            "program": {"sha256": hashlib.sha256(converted.program).hexdigest(), "bytes": len(converted.program)},
            "data_files": {
                name: {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
                for name, content in converted.data_files.items()
            },
            "reports": {name: hashlib.sha256(content).hexdigest() for name, content in converted.reports.items()},
            "converter": dataclasses.asdict(converter) | {"caveat": converter.caveat},
            "delegates": list(converted.delegates),
            "operators": list(converted.operators),
            "planned_memory_bytes": converted.planned_memory_bytes,
            "inputs": [dataclasses.asdict(tensor) for tensor in converted.inputs],
            "outputs": [dataclasses.asdict(tensor) for tensor in converted.outputs],
            "output_steps": list(converted.output_steps),
            "estimates": converted.estimates,
            "partitions": partitions,
            "versions": {name: importlib.metadata.version(name) for name in ("torch", "executorch", "torchao")},
        },
    )


def read_data_files() -> dict[str, bytes]:
    """The files that the program of `write_converted` reads from beside it, by name."""
    return {name: existing(DATA_FILES / name).read_bytes() for name in read_json(MANIFEST)["data_files"]}


def _write_reports(converted: Converted) -> None:
    """What the converter tells: a folder for each partition, and files on the whole program."""
    with replaced_folder(REPORTS) as folder:
        for index, partition in enumerate(converted.partitions):
            for name, content in partition.reports.items():
                write_bytes(folder / f"partition_{index}" / name, content)
        if converted.etrecord is not None:
            write_bytes(folder / ETRECORD_NAME, converted.etrecord)
        for name, content in converted.reports.items():
            write_bytes(folder / name, content)
        if not any(folder.iterdir()):
            write_text(folder / "README.txt", "The compiler of this program writes no reports.\n")


def open_program(resolver: Resolver) -> FloatProgram:
    """The program that `write_converted` wrote, with its host twins, ready to be executed on float32 samples here."""
    from lowerdeck import runtime

    return runtime.open_float_program(existing(PROGRAM), manifest=existing(MANIFEST), twins=TWINS, resolver=resolver)


def write_baseline(outputs: Outputs, samples: Sequence[int], layers: Sequence[LayerFigures]) -> None:
    """What the `.pte` is held against: outputs of the float and the quantized program, and the table of layers.

    Args:
        outputs: Of both programs.
        samples: Indices into the evaluation split, of the samples that they were executed on.
        layers: Of the quantized program against the float program.
    """
    import numpy as np
    from safetensors.numpy import save

    tensors: dict[str, Any] = {f"logits.{name}": np.ascontiguousarray(array) for name, array in outputs.logits.items()}
    tensors["samples"] = np.array(samples, dtype=np.int64)
    if outputs.labels is not None:
        tensors["labels"] = outputs.labels
    about = {"structural": outputs.structural, "output_lsb": outputs.output_lsb}
    write_bytes(BASELINE, save(tensors, metadata={"about": json.dumps(about, sort_keys=True)}))
    columns = [field.name for field in dataclasses.fields(LayerFigures)]
    write_table(LAYERS, columns, [tuple(dataclasses.asdict(layer).values()) for layer in layers])


def read_baseline() -> tuple[Outputs, list[int]]:
    """The outputs that `write_baseline` wrote, and the samples that they belong to."""
    from safetensors import safe_open

    with safe_open(existing(BASELINE), framework="numpy") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        about = json.loads(file.metadata()["about"])
    outputs = Outputs(
        labels=tensors.get("labels"),
        logits={name.partition(".")[2]: array for name, array in tensors.items() if name.startswith("logits.")},
        **about,
    )
    return outputs, [int(index) for index in tensors["samples"]]


def write_evaluation(
    figures: dict[str, Any], outputs: Outputs, digests: Sequence[str], classes: Sequence[ClassFigures] = ()
) -> None:
    """Figures, confusion pairs of the most real program measured, classes, and the samples used by digest."""
    write_json(METRICS, figures)
    rows: list[tuple[str, str]] = []
    if outputs.labels is not None:
        program = "delegated" if "delegated" in outputs.logits else "quantized"
        predicted = outputs.logits[program].argmax(axis=1)
        rows = [(str(actual), str(guess)) for actual, guess in zip(outputs.labels, predicted, strict=True)]
    write_table(CONFUSION, ("actual", "predicted"), rows)
    _write_classes(classes, list(outputs.logits))
    write_json(EVALUATION_SAMPLES, list(digests))


def _write_classes(classes: Sequence[ClassFigures], programs: Sequence[str]) -> None:
    """One row a class: its samples, and each program's accuracy on them with the ends of the 95 % interval."""
    header = ["class", "num_samples"]
    header += [f"{program}_accuracy{end}" for program in programs for end in ("", LOW, HIGH)]
    rows = []
    for figures in classes:
        row: list[object] = [figures.label, figures.num_samples]
        for program in programs:
            correct = figures.correct[program]
            row += [correct / figures.num_samples, *wilson_interval(correct, figures.num_samples)]
        rows.append(row)
    write_table(CLASSES, header, rows)


def write_firmware(files: Mapping[str, bytes]) -> None:
    """The bundle for firmware: its files by name as a folder, and the same as a zip file.

    The files are stored and not compressed, as what a compressor writes depends on its version; and times, modes and
    order are fixed. So the zip file too has the same bytes everywhere.
    """
    with replaced_folder(FIRMWARE) as folder:
        for name, content in files.items():
            write_bytes(folder / name, content)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(f"{FIRMWARE.name}/{name}", date_time=(1980, 1, 1, 0, 0, 0))
            entry.create_system, entry.external_attr = 3, 0o100644 << 16  # Unix, a file that all may read
            archive.writestr(entry, content)
    write_bytes(FIRMWARE_ZIP, buffer.getvalue())


def write_table(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A CSV file, as `dvc plots` reads it."""
    import csv

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_text(path, text.getvalue())


def existing(path: Path) -> Path:
    """`path`, which is a file.

    Raises:
        LowerdeckError: it is not there; names the stage that writes it.
    """
    if not path.is_file():
        stage = path.parent.name if path != CONFIG else "compose"
        raise LowerdeckError(f"{path} is missing; `dvc repro {stage}` makes it")
    return path
