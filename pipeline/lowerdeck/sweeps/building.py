"""Takes one point through the stages of dvc.yaml, taking each result from the store or making and storing it."""

from __future__ import annotations

import dataclasses
import io
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import read_json, sha256, write_bytes, write_json, write_text
from lowerdeck.config.compose import compose_params, render
from lowerdeck.config.flavor import check_installed
from lowerdeck.config.load import config_of
from lowerdeck.config.yaml_text import plain_values
from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.execution.failures import LOGS
from lowerdeck.fingerprints.closures import stage_code, unwatched_by
from lowerdeck.fingerprints.data import names_list
from lowerdeck.fingerprints.digests import digest
from lowerdeck.fingerprints.keys import output_digests, stage_key, value_at
from lowerdeck.fingerprints.versions import environment_packages
from lowerdeck.sweeps import snapshot, warm
from lowerdeck.sweeps.declaration import Stage
from lowerdeck.sweeps.edge_programs import STAGE as PARTITION
from lowerdeck.sweeps.folder import PointRecord
from lowerdeck.sweeps.state import StageFailed, SweepState

COMPOSE, EVALUATE, MEASURE, TRACK = "compose", "evaluate", "measure", "track"
_PARAMS = "params.yaml"
_SHOWN_LINES = 6
"""Lines of a failed stage's log in the list of failures."""


class PointBuild:
    """One point on its way through the stages."""

    def __init__(
        self, shared: SweepState, number: int, typed: list[str], params: dict[str, Any], session: str = ""
    ) -> None:
        """See `PointRecord` for `number`, `typed` and `session`; `params` is the point's params.yaml."""
        self._session = session
        self._shared, self._number, self._typed, self._params = shared, number, typed, params
        self._workspace = shared.folder.workspace(session, number)
        self._materialized: set[str] | None = None
        """Stages whose results are in the workspace; None before there is a workspace."""
        self._keys: dict[str, str] = {}
        self._digests: dict[str, str] = {}
        """Digests of artifacts by path."""
        self._config: Mapping[str, Any] = {}
        self._params_of: dict[str, Mapping[str, Any]] = {}
        """Content of compose's files by path."""
        self._done: dict[str, str] = {}
        """`ran` or `shared` by stage."""
        self._measured: Path | None = None
        """Workspace with the metrics of a point that failed at a gate or at its device; that of another point if it ran
        the stage."""
        self._failed_at = EVALUATE
        """The stage that failed there."""

    def run(self, *, defers_device: bool = False) -> PointRecord:
        """Take the point through all stages except `track`; returns its record.

        With `defers_device`, `measure` is left out where it needs a device, which may be in use by others.
        """
        point, overrides = self._number, self._typed
        try:
            self.configure()
        except ConfigurationError as error:
            return PointRecord(point=point, overrides=overrides, status="skipped", reason=str(error))
        try:
            waiting = [stage for stage in self._shared.stages.values() if stage.name not in (COMPOSE, TRACK)]
            if defers_device and self._config.get("device", {}).get("kind") is not None:
                waiting = [stage for stage in waiting if stage.name != MEASURE]
            while waiting:
                stage = self._next(waiting)
                self._ensure_result(stage)
                waiting.remove(stage)
            metrics = self._metrics()
        except StageFailed as failed:
            return self._failed(failed)
        return PointRecord(
            point=point, overrides=overrides, status="built", stages=self._done,
            program_sha256=self._digests[paths.PROGRAM.as_posix()], metrics=metrics,
        )  # fmt: skip

    def measure(self, record: PointRecord) -> PointRecord:
        """Measure a point that `run` has built without its device; returns its completed record."""
        if record.status != "built" or MEASURE in self._keys or MEASURE not in self._shared.stages:
            return record
        try:
            self._ensure_result(self._shared.stages[MEASURE])
            return dataclasses.replace(record, stages=self._done, metrics=self._metrics())
        except StageFailed as failed:
            return self._failed(failed)

    def track(self, record: PointRecord) -> PointRecord:
        """Record in MLflow a point that `run` has built or that misses a gate; returns its updated record."""
        if self._measured is not None:
            return self._track_measured(record, self._measured)
        if record.status != "built":
            return record
        try:
            self._ensure_result(self._shared.stages[TRACK])
        except StageFailed as failed:
            return self._failed(failed)
        build_key = self._recorded_key()
        shutil.rmtree(self._workspace, ignore_errors=True)
        return dataclasses.replace(record, stages=self._done, build_key=build_key)

    def _recorded_key(self) -> str:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            if not self._shared.store.get(self._keys[TRACK], folder):  # the stored result is damaged
                self._materialize(self._shared.stages[TRACK])
                folder = self._workspace
            return str(read_json(folder / paths.RECORDED)["build_key"])

    def _track_measured(self, record: PointRecord, measured: Path) -> PointRecord:
        """Record a point whose metrics miss a gate, to show by how much, or whose device gave no metrics."""
        stage = self._shared.stages[TRACK]
        try:
            for path in (paths.CONFIG.as_posix(), *stage.inputs):
                if (earlier := self._shared.producer_of[path]).name not in (self._failed_at, MEASURE):
                    self._materialize(earlier)
            if measured != self._workspace:  # the store has no results of failed stages
                for file in _files_of(self._shared.stages[self._failed_at], measured):
                    if (measured / file).is_file():  # a device that failed left none
                        write_bytes(self._workspace / file, (measured / file).read_bytes())
            self._execute(stage, digest([self._keys[self._failed_at], TRACK]))
        except StageFailed as failed:
            return dataclasses.replace(record, reason=f"{record.reason}\n{failed.reason}\nlog: {failed.log}")
        return dataclasses.replace(record, stages=record.stages | {TRACK: "ran"})

    def _failed(self, failed: StageFailed) -> PointRecord:
        metrics = {}
        if failed.workspace is not None and failed.stage in (EVALUATE, MEASURE):
            metrics = _read_metrics(failed.workspace)
        self._measured, self._failed_at = (failed.workspace if metrics else None), failed.stage
        return PointRecord(
            point=self._number, overrides=self._typed, status="failed", reason=failed.reason,
            stages=self._done | {failed.stage: "failed"}, log=str(failed.log), metrics=metrics,
        )  # fmt: skip

    def _next(self, waiting: list[Stage]) -> Stage:
        """The first stage whose inputs are available, preferably one that no other worker is running."""
        ready = [stage for stage in waiting if all(path in self._digests for path in stage.inputs)]
        return next((stage for stage in ready if not self._is_running_elsewhere(stage)), ready[0])

    def _is_running_elsewhere(self, stage: Stage) -> bool:
        quantized = self._digests.get(paths.QUANTIZED.as_posix(), "")
        awaited = stage.name == PARTITION and self._shared.edge_cache.is_being_made(self._config, quantized)
        return awaited or self._shared.store.is_locked(self._key(stage))

    def configure(self) -> bool:
        """Compose the point unless an equal one was composed before; returns whether it was composed now.

        Raises:
            ConfigurationError: the configuration is invalid.
        """
        stage, store = self._shared.stages[COMPOSE], self._shared.store
        text = _yaml(self._params)
        key = self._keys[COMPOSE] = stage_key(
            module=stage.module,
            sources={
                path: digest(text) if path == _PARAMS else self._shared.source_digest(path) for path in stage.sources
            },
            params={},
            inputs={},
            outputs=stage.outputs,
            versions=self._shared.sweep.versions,
        )
        if key not in self._shared.configured or not store.contains(key):
            self._shared.configured[key] = self._compose_or_fetch(key)
        self._params_of, digests = self._shared.configured[key]
        self._config = self._params_of[paths.CONFIG.as_posix()]
        self._digests |= digests
        return self._done.setdefault(COMPOSE, "shared") == "ran"

    def _compose_or_fetch(self, key: str) -> tuple[dict[str, Mapping[str, Any]], dict[str, str]]:
        """Content and SHA-256 by path of the resolved configuration and code digests, from the store or composed."""
        store = self._shared.store
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            if not self._fetched(key, folder):
                if (refused := self._shared.refused.get(key)) is not None:
                    raise refused
                try:
                    composed = compose_params(self._params, self._shared.folder.project / "conf", self._shared.chosen)
                except ConfigurationError as error:
                    self._shared.refused[key] = error
                    raise
                write_text(folder / paths.CONFIG, render(composed))
                write_json(folder / paths.CODE, stage_code(dataclasses.asdict(composed), self._shared.folder.project))
                store.put(key, folder, [paths.CONFIG, paths.CODE])
                self._done[COMPOSE] = "ran"
            text = (folder / paths.CONFIG).read_text(encoding="utf-8")
            check_installed(config_of(text))  # before any point is built
            config = plain_values(text)
            values = {paths.CONFIG.as_posix(): config, paths.CODE.as_posix(): read_json(folder / paths.CODE)}
            return values, {path: sha256(folder / path) for path in values}

    def _fetched(self, key: str, folder: Path) -> bool:
        """Whether the store's result of compose is in `folder` now, and `key` covers all that it depends on."""
        if not self._shared.store.contains(key) or not self._shared.store.get(key, folder):
            return False
        config = plain_values((folder / paths.CONFIG).read_text(encoding="utf-8"))
        is_elsewhere = unwatched_by(config, self._shared.stages[COMPOSE].sources)
        return not is_elsewhere and not names_list(config["dataset"])

    def _ensure_result(self, stage: Stage) -> None:
        """Make sure that the store has the result of `stage`."""
        key = self._keys[stage.name] = self._key(stage)
        if (files := self._shared.store.digests(key)) is not None:
            self._done[stage.name] = "shared"
        else:
            files = self._run_stage(stage, key)
        self._digests |= output_digests(stage.outputs, files)

    def _key(self, stage: Stage) -> str:
        return stage_key(
            module=stage.module,
            sources={path: self._shared.source_digest(path) for path in stage.sources},
            params={
                file: {key: value_at(self._params_of[file], key) for key in keys} for file, keys in stage.params.items()
            },
            inputs={path: self._digests[path] for path in stage.inputs},
            outputs=stage.outputs,
            versions=self._shared.sweep.versions,
            about=self._about(stage),
        )

    def _about(self, stage: Stage) -> list[Any] | None:
        """What the result of `stage` depends on beside files, parameters and this environment."""
        if stage.name == TRACK:
            return [self._tags(), self._shared.tracking_identity(self._config)]
        if "flavor" in stage.params.get(paths.CONFIG.as_posix(), ()):
            return environment_packages(self._config["flavor"]["options"]) or None
        return None

    def _run_stage(self, stage: Stage, key: str) -> dict[str, str]:
        """Run `stage` unless another process has done so meanwhile; returns SHA-256 by path of its files."""
        if key in self._shared.failed:
            raise self._shared.failed[key]
        store = self._shared.store
        with store.lock(key):
            if (files := store.digests(key)) is not None:
                self._done[stage.name] = "shared"
                return files
            self._make(stage)
        made = store.digests(key)
        assert made is not None, f"the store lost {key} at once"
        return made

    def _make(self, stage: Stage) -> None:
        """Execute `stage` on its inputs and store its result."""
        for path in (paths.CONFIG.as_posix(), *stage.inputs):
            self._materialize(self._shared.producer_of[path])
        key = self._keys[stage.name]
        self._execute(stage, key)
        self._shared.store.put(key, self._workspace, _files_of(stage, self._workspace), linked=True)

    def _materialize(self, stage: Stage) -> None:
        """Put the result of `stage` into the workspace; make it again if the store has lost it."""
        if self._materialized is None:
            snapshot.make_workspace(
                self._workspace, self._shared.project, self._shared.folder.project, _yaml(self._params)
            )
            self._materialized = set()
        if stage.name in self._materialized:
            return
        if not self._shared.store.get(self._keys[stage.name], self._workspace):
            if stage.name == COMPOSE:
                self.configure()
                self._shared.store.get(self._keys[COMPOSE], self._workspace)
            else:
                self._make(stage)
        self._materialized.add(stage.name)

    def _execute(self, stage: Stage, key: str) -> None:
        """Run `stage` in the workspace.

        Raises:
            StageFailed: the stage failed, or data changed while it ran.
        """
        folder, data = self._shared.folder, self._shared.data_digest()
        log = folder.log(self._number, stage.name)
        about = {"point": self._number, "session": self._session, "stage": stage.name, "key": key}
        folder.log_event("stage begins", **about)
        started = time.perf_counter()
        with self._with_extra_inputs(stage):
            warm_process = warm.TRACKING if stage.name == TRACK else warm.LOWERING
            code = warm.run(stage.module, self._workspace, folder.project, log, warm_process)
        seconds = round(time.perf_counter() - started, 3)
        folder.log_event("stage ends", **about, exit_code=code, seconds=seconds)
        reason = _reason(stage.name, log, code, self._workspace) if code else ""
        if not code and self._shared.data_digest(refresh=True) != data:
            reason = f"{stage.name}: files in {snapshot.DATA}/ were changed while it ran; start the sweep again"
        if not reason and (missing := [path for path in stage.outputs if not (self._workspace / path).exists()]):
            reason = f"{stage.name} ended without an error and without {', '.join(missing)}; see what it ran"
        if reason:
            self._shared.check_disk_space()
            failed = StageFailed(stage.name, log, reason, self._workspace if code > 0 else None)
            self._shared.failed[key] = failed
            raise failed
        assert self._materialized is not None
        self._materialized.add(stage.name)
        self._done[stage.name] = "ran"

    @contextmanager
    def _with_extra_inputs(self, stage: Stage) -> Iterator[None]:
        """Provide what a stage gets in a sweep in addition to its inputs: tags for track, an edge program to reuse."""
        if stage.name == TRACK:
            write_json(self._workspace / paths.SWEEP_TAGS, self._tags())
        quantized = self._digests.get(paths.QUANTIZED.as_posix(), "")
        reuse = self._shared.edge_cache.reuse(self._workspace, self._config, quantized)
        with reuse if stage.name == PARTITION else nullcontext():
            yield

    def _tags(self) -> dict[str, str]:
        """The point's MLflow tags."""
        return self._shared.sweep.tags(self._number, self._typed)

    def _metrics(self) -> dict[str, Any]:
        """Metrics that evaluate and measure wrote."""
        metrics: dict[str, Any] = {}
        for stage in (EVALUATE, MEASURE):
            if stage not in self._keys:  # a workspace of an earlier version has no stage measure
                continue
            with tempfile.TemporaryDirectory() as temporary:
                folder = Path(temporary)
                if not self._shared.store.get(self._keys[stage], folder):  # the stored result is damaged
                    self._materialize(self._shared.stages[stage])
                    folder = self._workspace
                metrics |= _read_metrics(folder)
        return metrics


def _files_of(stage: Stage, workspace: Path) -> list[Path]:
    """Files of the stage's outputs, relative to the workspace."""
    files: list[Path] = []
    for output in stage.outputs:
        place = workspace / output
        found = sorted(place.rglob("*")) if place.is_dir() else [place]
        files += [path.relative_to(workspace) for path in found if not path.is_dir()]
    return files


def _read_metrics(folder: Path) -> dict[str, Any]:
    """The metrics of evaluate and measure below `folder`; empty if they are missing."""
    metrics: dict[str, Any] = {}
    for path in (folder / paths.METRICS, folder / paths.DEVICE_METRICS):
        metrics |= read_json(path) if path.is_file() else {}
    return {name: value for name, value in metrics.items() if isinstance(value, (int, float, str))}


def _reason(stage: str, log: Path, code: int, workspace: Path) -> str:
    """Why a stage failed, from the end of its log; files that it names are in the point's workspace."""
    if code < 0:
        import signal

        return f"{stage} was ended by {signal.Signals(-code).name}"
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    message = next((index for index, line in enumerate(lines) if line.startswith(f"{stage}: ")), None)
    shown = lines[message:] if message is not None else lines[-1:]
    reason = "\n".join(shown[-_SHOWN_LINES:]) or f"{stage} ended with exit code {code}"
    return reason.replace(f" in {LOGS}/", f" in {workspace / LOGS}/")


def _yaml(params: Mapping[str, Any]) -> str:
    """`params` as YAML 1.2, which compose reads."""
    from ruamel.yaml import YAML

    text = io.StringIO()
    YAML(typ="safe", pure=True).dump(dict(params), text)
    return text.getvalue()
