"""`lowerdeck.build` and `lowerdeck.load`: one build as a value."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import write_bytes
from lowerdeck.artifacts.plans import parse_plan
from lowerdeck.config.schema import Config, TrackingConfig
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.plan import DelegationPlan
from lowerdeck.evaluation.defects import defects
from lowerdeck.evaluation.gates import exact
from lowerdeck.notebook.modules import absolute, in_workspace
from lowerdeck.report import summary
from lowerdeck.tracking import recorded_build
from lowerdeck.tracking.recorded_run import RecordedRun
from lowerdeck.tracking.runs import read_artifact, read_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from lowerdeck.runtime.program import HostProgram

_SHOWN = ("delegated_share", "delegated_macs_share", "partitions", "program_bytes", "planned_memory_bytes")
"""Metrics of the table in a notebook, below the first one of the task; those that a build lacks are left out."""


@dataclass(frozen=True, kw_only=True)
class Build:
    """A recorded build: its configuration, metrics, plan and program."""

    run_id: str
    """Id of its MLflow run."""
    name: str
    config: Config = field(repr=False)
    """The resolved configuration."""
    metrics: Mapping[str, Any] = field(repr=False)
    """Numbers, also those of the device, and texts where something could not be measured."""
    plan: DelegationPlan = field(repr=False)
    """The plan that the program was lowered by."""
    program: bytes = field(repr=False)
    """The `.pte`."""
    tracking: TrackingConfig = field(repr=False)
    """Where it is recorded; relative locations count from `workspace`."""
    workspace: Path = field(repr=False)

    def save(self, folder: Path | str) -> Path:
        """Write the `.pte`, manifest.json and the host twins to `folder`, as `lowerdeck run` reads them.

        Returns:
            The path of the `.pte`.

        Raises:
            LowerdeckError: the folder cannot be written.
        """
        folder = absolute(folder)
        with in_workspace(self.workspace):
            files = {paths.MANIFEST.name: read_artifact(self.tracking, self.run_id, paths.MANIFEST.name)}
            files |= read_folder(self.tracking, self.run_id, paths.TWINS.name)
            files |= read_folder(self.tracking, self.run_id, paths.DATA_FILES.name)
        for name, content in {**files, paths.PROGRAM.name: self.program}.items():
            _write(folder / name, content)
        return folder / paths.PROGRAM.name

    def open(self, folder: Path | str) -> HostProgram:
        """`save` to `folder`, and open the program for execution on this host.

        Returns:
            A program that takes a sequence of tensors and returns a list of tensors.

        Raises:
            LowerdeckError: this host cannot execute it.
        """
        from lowerdeck.runtime.loading import open_program

        program = self.save(folder)
        return open_program(program, manifest=program.with_name("manifest.json"), twins=program.with_name("twins"))

    def outputs(self, inputs: Sequence[torch.Tensor], folder: Path | str) -> list[torch.Tensor]:
        """Outputs of the program for `inputs`, executed on this host from `folder`; see `open`."""
        return list(self.open(folder)(inputs))

    def __str__(self) -> str:
        rows = self._rows()
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)

    def _repr_html_(self) -> str:
        rows = self._rows()
        cells = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>" for name, text in rows)
        return f"<table>{cells}</table>"

    def _rows(self) -> list[tuple[str, str]]:
        rows = [("build", self.name), ("run", self.run_id)]
        quality = [f"{program}_{summary.primary_metric(self.metrics)}" for program in summary.PROGRAMS]
        rows += [(name, _shown(self.metrics[name])) for name in (*quality, *_SHOWN) if name in self.metrics]
        return rows + [("do not ship", f"it {defect}") for defect in defects(self.metrics)]

    def explanation(self) -> Page:
        """The plan as a page: its graph, and why nodes are not delegated."""
        from lowerdeck.pages.explanation.page import render

        return Page(html=render(self.plan, self.name))


@dataclass(frozen=True)
class Page:
    """A page, which a notebook shows in a frame."""

    html: str = field(repr=False)

    def _repr_html_(self) -> str:
        frame = 'style="width: 100%; height: 640px; border: 1px solid #ccc" sandbox="allow-scripts"'
        return f'<iframe {frame} srcdoc="{html.escape(self.html)}"></iframe>'

    def save(self, path: Path | str) -> Path:
        """Write the page to a file; raises LowerdeckError if it cannot be written."""
        _write(absolute(path), self.html.encode())
        return Path(path)


def build(*overrides: str, workspace: Path | str = ".") -> Build:
    """Build params.yaml with `overrides` on top, and return the build.

    Neither params.yaml nor build/ changes: it is a sweep of one point, which shares every stage that was built before.
    Threads may call it: they build one after the other.

    Args:
        overrides: As for `lowerdeck sweep`, e.g. `"target=ethos_u55_128"`; without any, params.yaml as it is.
        workspace: Folder of the workspace.

    Raises:
        LowerdeckError: the configuration is invalid, or a stage failed.
    """
    from lowerdeck.notebook.sweeps import swept

    (point,) = swept(overrides, workspace, is_one=True).builds
    return point


def load(selector: str, workspace: Path | str = ".") -> Build:
    """A build that was recorded in MLflow.

    Args:
        selector: Id of its run, the beginning of the id, its name, or an MLflow filter that only it matches.
        workspace: Folder of the workspace whose configuration says where builds are recorded.

    Raises:
        LowerdeckError: `selector` names no run, or several.
    """
    if not isinstance(selector, str):
        raise LowerdeckError(f"a build is named by a text, such as the id of its run or its name; got {selector!r}")
    with in_workspace(workspace):
        tracking = recorded_build.tracking_config()
        return read(tracking, recorded_build.find_run(tracking, selector))


def read(tracking: TrackingConfig, run: RecordedRun) -> Build:
    """The build of `run`; the current folder is its workspace."""
    recorded = recorded_build.read(tracking, run)
    return Build(
        run_id=run.run_id,
        name=run.name,
        config=recorded.config,
        metrics=recorded_build.read_all_metrics(tracking, run),
        plan=parse_plan(read_artifact(tracking, run.run_id, paths.PLAN.name).decode(), f"run {run.run_id}"),
        program=read_artifact(tracking, run.run_id, paths.PROGRAM.name),
        tracking=tracking,
        workspace=Path.cwd(),
    )


def _write(path: Path, content: bytes) -> None:
    try:
        write_bytes(path, content)
    except OSError as error:
        raise LowerdeckError(f"{path} cannot be written: {error.strerror}; save to another place") from error


def _shown(value: Any) -> str:
    return exact(value) if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
