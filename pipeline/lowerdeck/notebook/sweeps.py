"""`lowerdeck.sweep`: many builds as a value."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.notebook.builds import Build, Page, read
from lowerdeck.notebook.modules import in_workspace
from lowerdeck.tracking import recorded_build
from lowerdeck.tracking.runs import find_runs
from lowerdeck.tracking.store import BUILD_KEY_TAG

if TYPE_CHECKING:
    from lowerdeck.comparison.comparison import Comparison


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The points of a sweep that were built, in their order."""

    id: str
    builds: tuple[Build, ...]
    skipped: tuple[str, ...]
    """Why combinations were left out, with their overrides."""
    comparison: Comparison = field(repr=False)
    """All of them side by side, as `lowerdeck compare` shows them."""

    def page(self) -> Page:
        """The comparison as a page with tables and plots."""
        from lowerdeck.pages.comparison.page import render

        return Page(render(self.comparison, f"Sweep {self.id}", None))

    def _repr_html_(self) -> str:
        return self.page()._repr_html_()


def sweep(*overrides: str, workspace: Path | str = ".") -> Sweep:
    """Build all points of `overrides`, sharing every stage whose inputs are the same.

    Args:
        overrides: As for `lowerdeck sweep`, e.g. `"target=ethos_u55_128,xnnpack_cpu"` or `"experiment=delegation"`.
        workspace: Folder of the workspace.

    Raises:
        LowerdeckError: an override is invalid for every point, no point can be built, a point failed, or builds are not
            recorded (`tracking: none`).
    """
    return swept(overrides, workspace)


def swept(overrides: Sequence[str], workspace: Path | str, *, is_one: bool = False) -> Sweep:
    """See `sweep`; with `is_one`, several points are an error before any is built."""
    from lowerdeck.cli.compare import compared
    from lowerdeck.sweeps import engine

    for given in overrides:
        if not isinstance(given, str):
            raise LowerdeckError(
                f'an override is a text, such as "target=xnnpack_cpu", and several are texts one after the other, no '
                f"list or dict; got {given!r}"
            )
    with in_workspace(workspace):
        prepared = engine.prepare(Path.cwd(), overrides, None)
        if is_one and (prepared.points is None or len(prepared.points) != 1):
            engine.forget_unless_begun(prepared.folder)  # it is that of an equal sweep, if there was one
            raise LowerdeckError(f"{' '.join(overrides)} names several builds; use lowerdeck.sweep")
        records = engine.run(prepared, Path.cwd(), uuid.uuid4().hex[:8])
        if failed := [record for record in records if record.status == "failed"]:
            raise LowerdeckError(f"{' '.join(failed[0].overrides) or 'the build'} failed: {failed[0].reason}")
        tracking = recorded_build.tracking_config()
        if not tracking.enabled:
            raise LowerdeckError("the build is not recorded; choose `tracking: local` in params.yaml")
        # Code that dvc.yaml does not list is no part of the id: a point may have runs of before and after an edit.
        found = find_runs(tracking, selector=prepared.sweep.id)
        runs = {(int(run.tags["sweep.point"]), run.tags[BUILD_KEY_TAG]): run for run in found}
        built = {record.point: (record.point, record.build_key) for record in records if record.status == "built"}
        return Sweep(
            id=prepared.sweep.id,
            builds=tuple(read(tracking, runs[key]) for _, key in sorted(built.items()) if key in runs),
            skipped=tuple(f"{' '.join(r.overrides)}: {r.reason}" for r in records if r.status == "skipped"),
            comparison=compared(tracking, [prepared.sweep.id])[1],
        )
