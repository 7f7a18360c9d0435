"""The MLflow run of a build: created the first time, then updated."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.baseline import read_layers
from lowerdeck.artifacts.evaluation_results import read_confusion
from lowerdeck.artifacts.files import read_json, write_bytes, write_json, write_text
from lowerdeck.artifacts.measurements import has_measurement
from lowerdeck.artifacts.sweep_tags import read_sweep_tags
from lowerdeck.artifacts.task_pictures import read_pictures
from lowerdeck.config.schema import Config
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.report import summary
from lowerdeck.tracking import view
from lowerdeck.tracking.address import WORKFLOW, run_address
from lowerdeck.tracking.content import DETAILS, DEVICE_FILES, Content, content, is_given_name
from lowerdeck.tracking.programs import find_or_create_model, log_program
from lowerdeck.tracking.store import extended_upload_timeout, find_or_create_run, opened

if TYPE_CHECKING:
    from mlflow.entities import Metric, Run
    from mlflow.tracking import MlflowClient

_WRITTEN = "lowerdeck.written"
"""Tag of runs of versions before 0.2.0 with what DETAILS has as `written`."""
_NOTE = "mlflow.note.content"
"""Tag with the run's description, as Markdown."""
_MAX_PER_BATCH = 100
"""Most parameters, tags or metrics that MLflow accepts per call."""


@dataclass(frozen=True, kw_only=True)
class RecordResult:
    """Where a build was recorded."""

    experiment: str
    run_name: str
    new: bool
    """Whether this was the first time."""


@dataclass(frozen=True, kw_only=True)
class _Model:
    """The logged model that has the metrics, too."""

    model_id: str
    is_new: bool


def record(
    config: Config, lineage: Mapping[str, Any], pages: Callable[[str], Mapping[str, str]] | None = None
) -> RecordResult:
    """Record the build in build/ in the run of its key; a point of a sweep has a run of its own.

    A run that could not be completed is marked as failed, and the next call completes it. A build that fails its gates
    also marks its run as failed; the tag `gates.failed` lists the reasons.

    Args:
        config: Resolved configuration.
        lineage: Result of `lineage.trace`.
        pages: Additional files of the run, text by name, for the address of the run's page.

    Raises:
        LowerdeckError: an artifact is missing, or MLflow cannot be reached or refuses.
    """
    sweep_tags = read_sweep_tags()
    wanted = content(config, lineage, sweep_tags)
    with opened(config.tracking) as store:
        run, new = find_or_create_run(store, config.tracking, lineage["build_key"], wanted.run_name, sweep_tags)
        with _set_final_status(store.client, run, "FAILED" if wanted.tags["gates"] == "failed" else "FINISHED"):
            model, is_new_model = find_or_create_model(store.client, run, wanted.run_name, wanted.params)
            _log_content(store.client, run, wanted, _Model(model_id=model.model_id, is_new=is_new_model))
            view.save(store, run.info.experiment_id, wanted.primary_metric)
            address = run_address(store.uri, run.info.experiment_id, run.info.run_id)
            with extended_upload_timeout():
                _log_files(store.client, run.info.run_id, lineage, wanted, pages(address) if pages else {})
                log_program(store.client, model.model_id)
    write_json(paths.MLFLOW_RUN, {"build_key": lineage["build_key"], "address": address})
    return RecordResult(experiment=config.tracking.experiment, run_name=wanted.run_name, new=new)


@contextmanager
def _set_final_status(client: MlflowClient, run: Run, status: str) -> Iterator[None]:
    """Set the run to `status` when the block succeeds, else to failed."""
    from mlflow.exceptions import MlflowException

    run_id = run.info.run_id
    client.update_run(run_id, status="RUNNING")
    try:
        yield
    except BaseException:
        with suppress(MlflowException, OSError):  # the first failure matters; the server may be gone by now
            client.set_terminated(run_id, "FAILED")
        raise
    client.set_terminated(run_id, status)


def _log_content(client: MlflowClient, run: Run, wanted: Content, model: _Model) -> None:
    """Update metrics and tags of `run`, and add its parameters and datasets."""
    from mlflow.entities import Dataset, DatasetInput, InputTag, Param, RunTag

    run_id = run.info.run_id
    before = _written_before(client, run)
    if is_given_name(run.info.run_name or "", run.data.params, run.data.tags):
        client.update_run(run_id, name=wanted.run_name)
    params = [Param(key, value) for key, value in wanted.params.items() if key not in run.data.params]
    for batch in _batches(params):
        client.log_batch(run_id, params=batch)
    for batch in _batches(_metric_changes(client, run, wanted.metrics, before.get("metrics", []), model)):
        client.log_batch(run_id, metrics=batch)
    datasets = [
        DatasetInput(Dataset(**fields), [InputTag("mlflow.data.context", context)])
        for context, fields in wanted.datasets.items()
    ]
    client.log_inputs(run_id, datasets=datasets)
    table = "| | |"  # the links stand above it, where the page shows them unfolded
    tags = {**wanted.tags, _NOTE: wanted.tags[_NOTE].replace(table, f"{_links(run)}\n\n{table}", 1)}
    for batch in _batches([RunTag(key, value) for key, value in tags.items()]):
        client.log_batch(run_id, tags=batch)
    for key in (*before.get("tags", []), _WRITTEN):
        if key not in wanted.tags and key in run.data.tags:
            client.delete_tag(run_id, key)


def _links(run: Run) -> str:
    """Links to the pages among the files of `run`, which work wherever MLflow is served."""
    base = f"#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}/artifacts"
    return " ".join(f"[{page.name}]({base}/{page.name}{WORKFLOW})" for page in (paths.REPORT, paths.EXPLANATION))


def _written_before(client: MlflowClient, run: Run) -> Mapping[str, list[str]]:
    """The metrics and tags of the last completed record, to preserve those that users add by hand."""
    if _WRITTEN in run.data.tags:
        written: Mapping[str, list[str]] = json.loads(run.data.tags[_WRITTEN])
    elif all(info.path != DETAILS for info in client.list_artifacts(run.info.run_id)):
        written = {}
    else:
        with tempfile.TemporaryDirectory() as temporary:
            stored = Path(client.download_artifacts(run.info.run_id, DETAILS, temporary)).read_bytes()
        try:
            written = json.loads(stored)["written"]
        except (ValueError, KeyError, TypeError):  # left by a full disk or a kill; this record replaces it
            written = {}
    return written


def _batches(entities: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(entities), _MAX_PER_BATCH):
        yield entities[start : start + _MAX_PER_BATCH]


def _metric_changes(
    client: MlflowClient, run: Run, wanted: Mapping[str, float], written: list[str], model: _Model
) -> list[Metric]:
    """The metrics to log so that the latest value of each is the wanted one.

    MLflow stores every value; the latest has the highest step, then timestamp, then value. So a changed value gets a
    later timestamp. A metric cannot be deleted: one that is no longer measured becomes NaN. A new model lacks all of
    them.
    """
    from mlflow.entities import Metric

    logged = run.data.metrics
    values = {key: value for key, value in wanted.items() if model.is_new or logged.get(key) != value}
    values |= {key: math.nan for key in written if key not in wanted and not math.isnan(logged.get(key, math.nan))}

    def timestamp_ms(key: str) -> int:
        if key not in logged:
            return int(run.info.start_time)
        return 1 + max(metric.timestamp for metric in client.get_metric_history(run.info.run_id, key))

    return [Metric(key, value, timestamp_ms(key), 0, model_id=model.model_id) for key, value in values.items()]


def _log_files(
    client: MlflowClient, run_id: str, lineage: Mapping[str, Any], wanted: Content, pages: Mapping[str, str]
) -> None:
    """Put the files of the build into the run and replace those of the same name."""
    at_the_top = (paths.CONFIG, paths.PROGRAM, paths.MANIFEST, paths.PLAN, paths.METRICS, paths.DRAWS)
    tables = (paths.CONFUSION, paths.CLASSES, paths.LAYERS)
    files: list[tuple[Path, str | None]] = [(path, None) for path in at_the_top + tables]
    files += [(paths.QUANTIZATION_REPORT, "quantization"), (paths.FIRMWARE_ZIP, None)]
    if has_measurement():
        files += [(path, DEVICE_FILES) for path in (paths.DEVICE_METRICS, paths.MEASUREMENT)]
    for folder in (paths.TWINS, paths.REPORTS, paths.DATA_FILES):
        found = (path for path in sorted(folder.rglob("*")) if path.is_file())
        files += [(path, path.parent.relative_to(paths.CONVERTED).as_posix()) for path in found]
    with tempfile.TemporaryDirectory() as temporary:
        write_json(Path(temporary, paths.LINEAGE.name), lineage)
        files.append((Path(temporary, paths.LINEAGE.name), None))
        for path, _ in files:
            if not path.is_file():
                raise LowerdeckError(f"{path} is missing; `dvc repro` makes it")
        files += [(path, "plots") for path in _plots(Path(temporary))]
        for name, text in pages.items():
            write_text(Path(temporary, name), text)
            files.append((Path(temporary, name), None))
        # Last, because an update that fails must leave the list of the last completed update.
        written = {"metrics": sorted(wanted.metrics), "tags": sorted(wanted.tags)}
        write_json(Path(temporary, DETAILS), {"texts": dict(wanted.details), "written": written})
        files.append((Path(temporary, DETAILS), None))
        for path, place in files:
            client.log_artifact(run_id, str(path), place)


def _plots(folder: Path) -> list[Path]:
    """Plots of the build's tables in `folder`; none for an empty table."""
    from lowerdeck.tracking.plots import confusion_png, curves_png, histogram_png, layers_png

    task = read_pictures()
    pictures = {f"{curves.name}.png": curves_png(curves) for curves in task.curves}
    pictures |= {f"worst_{number}.png": content for number, content in enumerate(task.worst)}
    if task.histogram is not None:
        pictures["histogram.png"] = histogram_png(task.histogram)
    if (confusion := read_confusion(paths.CONFUSION)) is not None:
        title = summary.confusion_title(read_json(paths.METRICS))
        pictures["confusion_matrix.png"] = confusion_png(confusion, title)
    if layers := read_layers(paths.LAYERS):
        pictures["layers.png"] = layers_png(layers)
    for name, picture in pictures.items():
        write_bytes(folder / name, picture)
    return [folder / name for name in pictures]
