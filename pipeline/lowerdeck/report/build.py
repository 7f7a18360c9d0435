"""Everything that the terminal's table and the HTML report show of the build in build/."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.baseline import read_layers
from lowerdeck.artifacts.conversion import LayerEstimate, read_layer_estimates
from lowerdeck.artifacts.evaluation_results import ClassAccuracies, Confusion, read_classes, read_confusion
from lowerdeck.artifacts.files import as_written, read_json, sha256
from lowerdeck.artifacts.measurements import read_all_metrics
from lowerdeck.artifacts.plans import read_plan
from lowerdeck.artifacts.quantization_report import read_quantization_loss, read_quantization_report
from lowerdeck.artifacts.task_pictures import TaskPictures, read_pictures
from lowerdeck.config import load
from lowerdeck.config.schema import Config
from lowerdeck.config.yaml_text import read_of_dvc
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.evaluation import LayerMetrics, QuantizationLoss
from lowerdeck.contracts.plan import DelegationPlan
from lowerdeck.contracts.quantization import QuantizedTensor
from lowerdeck.fingerprints.keys import build_key, program_identity
from lowerdeck.firmware.memory_budget import MemoryBudget, memory_budget, parts_of

_DVC_LOCK = Path("dvc.lock")
_SHA256_CHARACTERS = 64


@dataclass(frozen=True, kw_only=True)
class RunPage:
    """The page of a build's MLflow run."""

    address: str
    build_key: str


@dataclass(frozen=True, kw_only=True)
class Build:
    """A finished build, as described by its artifacts."""

    config: Config
    metrics: Mapping[str, Any]
    """metrics.json."""
    manifest: Mapping[str, Any]
    plan: DelegationPlan
    confusion: Confusion | None
    """None if the samples have no labels."""
    classes: Sequence[ClassAccuracies]
    """Empty if the samples have no labels."""
    pictures: TaskPictures
    """Curves, histogram and worst samples of the task."""
    layers: Sequence[LayerMetrics]
    """Worst first; empty if nothing is quantized."""
    tensors: Sequence[QuantizedTensor]
    """Tensors of the quantized program; empty if nothing is quantized."""
    loss: QuantizationLoss | None
    """Where the quantized program departs from the float one, as quantize found; None where it is near it."""
    profile: Sequence[LayerEstimate]
    """The compiler's estimate for each layer; empty if it wrote none."""
    memory_budget: MemoryBudget | None
    """How the program fills the board's memories; None if the target names none."""
    lineage: Mapping[str, Any] | None
    """None until `track` has recorded this build."""
    run_page: RunPage | None
    """None without a run."""


def read_build(lineage: Mapping[str, Any] | None = None, run_page: RunPage | None = None) -> Build:
    """The build in build/.

    Args:
        lineage: Its lineage; None reads what the stage track wrote, if it is of this build.
        run_page: The page of its MLflow run; None reads what the stage track wrote, likewise.

    Raises:
        LowerdeckError: an artifact is missing, or build/ contains parts of different builds.
    """
    config, manifest = load.read_config(paths.CONFIG), read_json(paths.MANIFEST)
    plan, metrics = read_plan(), read_all_metrics()
    _check_equal(
        {
            "backend": ((paths.CONFIG, config.target.backend), (paths.PLAN, plan.backend)),
            "flavor": ((paths.CONFIG, config.flavor.name), (paths.MANIFEST, manifest["converter"]["flavor"])),
            "program_bytes": (
                (paths.METRICS, metrics["program_bytes"]),
                (paths.MANIFEST, manifest["program"]["bytes"]),
            ),
        }
    )
    if lineage is None:
        check_is_one_build()
        lineage = _current_lineage(config, manifest)
    return Build(
        config=config,
        metrics=metrics,
        manifest=manifest,
        plan=plan,
        confusion=read_confusion(paths.CONFUSION),
        classes=read_classes(paths.CLASSES),
        pictures=read_pictures(),
        layers=read_layers(paths.LAYERS),
        tensors=read_quantization_report(),
        loss=read_quantization_loss(),
        profile=read_layer_estimates(),
        memory_budget=_memory_budget(config),
        lineage=lineage,
        run_page=_recorded_page(lineage) if run_page is None else run_page,
    )


def check_is_one_build() -> None:
    """Check that the program in build/ is the one that was evaluated, after it was composed or recorded as it is.

    Raises:
        LowerdeckError: the configuration may be of another build than the metrics, or a file is missing or damaged.
    """
    if not paths.MANIFEST.is_file():
        return  # a clone of a repository with the small files of a build, written in any order
    check_is_of_metrics()
    if paths.CONFIG.stat().st_mtime_ns <= paths.METRICS.stat().st_mtime_ns:
        return
    if current_lineage() is not None:
        return
    what, why = "contains parts of different builds", f"{paths.LINEAGE} is not of this configuration and program"
    if not paths.LINEAGE.is_file():
        what, why = "may contain parts of different builds", f"there is no {paths.LINEAGE} yet"
    raise LowerdeckError(
        f"{paths.BUILD} {what}: {paths.CONFIG} is newer than {paths.METRICS}, and {why}. "
        "`dvc repro` completes the build"
    )


def check_is_of_metrics() -> None:
    """Check that program and samples in build/ are those of the metrics.

    Git has the metrics and DVC the program: after `git checkout` alone they are of two builds, and times do not tell.

    Raises:
        LowerdeckError: they are not, or a file is missing or damaged.
    """
    metrics, manifest = read_all_metrics(), read_json(paths.MANIFEST)
    with as_written(paths.MANIFEST):
        found = program_identity(manifest)
    # Metrics of earlier versions do not have it.
    parts: dict[str, tuple[tuple[Path, Any], tuple[Path, Any]]] = {
        "program_sha256": ((paths.METRICS, metrics.get("program_sha256", found)), (paths.MANIFEST, found))
    }
    if paths.EVALUATION_SAMPLES.is_file():
        count = len(read_json(paths.EVALUATION_SAMPLES, list))
        parts["num_samples"] = (
            (paths.METRICS, metrics.get("num_samples", count)),
            (paths.EVALUATION_SAMPLES, count),
        )
    if paths.PROGRAM.is_file():  # a clone has its manifest alone
        described = manifest["program"]["sha256"]
        parts["the program's SHA-256"] = ((paths.PROGRAM, sha256(paths.PROGRAM)), (paths.MANIFEST, described))
    _check_equal(parts)


def _check_equal(parts: Mapping[str, tuple[tuple[Path, Any], tuple[Path, Any]]]) -> None:
    """Raise LowerdeckError for values that two files of one build have in common and that differ.

    Args:
        parts: Name of the value -> either file, and its value there.
    """
    differing = [
        f"{name} is {_short(value)} in {path} and {_short(other)} in {other_path}"
        for name, ((path, value), (other_path, other)) in parts.items()
        if value != other
    ]
    if differing:
        raise LowerdeckError(
            f"{paths.BUILD} contains parts of different builds: {'; '.join(differing)}. After `git checkout`, "
            "`dvc checkout` restores the rest of that commit's build; otherwise `dvc repro` completes the build"
        )


def _short(value: object) -> str:
    text = str(value)
    return f"{text[:12]}..." if len(text) == _SHA256_CHARACTERS else text


def is_of_plan(config: Config, plan: DelegationPlan) -> bool:
    """Whether the newest plan in build/ was made with this configuration: compose may have run alone since."""
    if plan.backend != config.target.backend:
        return False
    written = [path.stat().st_mtime_ns for path in (paths.PLAN, paths.PLANNED) if path.is_file()]
    if paths.CONFIG.stat().st_mtime_ns <= max(written, default=0):
        return True
    # Another section may have changed, or DVC linked the plan from its cache: it knows what stages ran with.
    with suppress(LowerdeckError, AttributeError):  # AttributeError: a lock that DVC did not write to its end
        now, stages = read_of_dvc(paths.CONFIG), read_of_dvc(_DVC_LOCK).get("stages", {})
        for stage, section in (("export", "model"), ("partition", "target")):
            then = stages.get(stage, {}).get("params", {}).get(paths.CONFIG.as_posix(), {})
            if then.get(section, now[section]) != now[section]:
                return False
    return True


def is_younger(page: Path, file: Path) -> bool:
    """Whether `page`, which no stage writes, is there and was written after `file` of the build in build/."""
    return page.is_file() and file.is_file() and page.stat().st_mtime_ns >= file.stat().st_mtime_ns


def report_is_current() -> bool:
    """Whether report.html is there, and of the configuration, program and metrics in build/."""
    files = (paths.CONFIG, paths.MANIFEST)
    if not (is_younger(paths.REPORT, paths.METRICS) and all(file.is_file() for file in files)):
        return False
    # Times alone do not tell: files that DVC links from its cache have those of the day when they were made.
    return identity(load.read_config(paths.CONFIG), read_json(paths.MANIFEST)) in paths.REPORT.read_text(
        encoding="utf-8", errors="replace"
    )


def identity(config: Config, manifest: Mapping[str, Any]) -> str:
    """What tells a build from others: its build key, and the SHA-256 of its program."""
    return f"{build_key(config, manifest)} {manifest['program']['sha256']}"


def current_lineage() -> Mapping[str, Any] | None:
    """The lineage in build/; None until `track` has recorded this build."""
    if not (paths.CONFIG.is_file() and paths.MANIFEST.is_file()):
        return None
    return _current_lineage(load.read_config(paths.CONFIG), read_json(paths.MANIFEST))


def _current_lineage(config: Config, manifest: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if not paths.LINEAGE.is_file():
        return None
    lineage: Mapping[str, Any] = read_json(paths.LINEAGE)
    with as_written(paths.LINEAGE):
        programs = [link["sha256"] for link in lineage["links"] if link["name"] == "program"]
    current = lineage["build_key"] == build_key(config, manifest) and programs == [manifest["program"]["sha256"]]
    return lineage if current else None


def current_run_page() -> RunPage | None:
    """The page of the MLflow run of the build in build/; None until `track` has recorded this build."""
    return _recorded_page(current_lineage())


def _recorded_page(lineage: Mapping[str, Any] | None) -> RunPage | None:
    if lineage is None or not paths.MLFLOW_RUN.is_file():
        return None
    stored = read_json(paths.MLFLOW_RUN)
    with as_written(paths.MLFLOW_RUN):
        page = RunPage(address=stored["address"], build_key=stored["build_key"])
        if not isinstance(page.address, str):
            raise TypeError(f"address is {page.address!r}")
    return page if page.build_key == lineage["build_key"] else None


def _memory_budget(config: Config) -> MemoryBudget | None:
    metadata = paths.FIRMWARE_METADATA
    if not config.target.memories or not metadata.is_file():
        return None
    described = read_json(metadata)
    if "memory" not in described:  # the bundle could not be made
        return None
    return memory_budget(parts_of(described), config.target.memories, banked=config.target.banked_memory_planning)
