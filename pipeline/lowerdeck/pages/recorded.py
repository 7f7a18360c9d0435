"""The pages that an MLflow run keeps of its build: the report, and the explanation of its plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lowerdeck.artifacts import paths
from lowerdeck.pages import report
from lowerdeck.pages.explanation import export
from lowerdeck.report.build import RunPage, read_build


def recorded_pages(lineage: Mapping[str, Any], run_address: str) -> dict[str, str]:
    """Name -> text of the pages of the build in build/.

    Args:
        lineage: Result of `lineage.trace`, which the stage track has not written yet.
        run_address: Address of the run's page.
    """
    page = RunPage(address=run_address, build_key=lineage["build_key"])
    build = read_build(lineage, page)
    return {paths.REPORT.name: report.render(build), **export.render(build.plan, build.config, run_page=page)}
