"""The files that explain a plan: the page, and the graph for Model Explorer."""

from __future__ import annotations

import json
from collections.abc import Sequence

from lowerdeck.artifacts import paths
from lowerdeck.config.schema import Config
from lowerdeck.contracts.plan import DelegationPlan
from lowerdeck.explain import model_explorer
from lowerdeck.explain.causes import Trial
from lowerdeck.explain.costs import Profile
from lowerdeck.pages.explanation import page
from lowerdeck.report.build import RunPage


def render(
    plan: DelegationPlan,
    config: Config | None,
    tried: Sequence[Trial] = (),
    profile: Profile | None = None,
    run_page: RunPage | None = None,
    *,
    has_report: bool = True,
) -> dict[str, str]:
    """File name -> text, equal for equal arguments.

    Args:
        plan: The plan of a build.
        config: Its resolved configuration, for the names of model and target; may be None.
        tried: Changes that were tried.
        profile: What a device measured of its operators; None where none did.
        run_page: The page of the build's MLflow run; None without one.
        has_report: Whether report.html and firmware.zip of the same build stand beside the page.
    """
    title = plan.backend if config is None else f"{config.model.name} on {config.target.name}"
    return {
        paths.EXPLANATION.name: page.render(plan, title, tried, profile, has_report=has_report, run_page=run_page),
        paths.MODEL_EXPLORER.name: json.dumps(model_explorer.clusters(plan), sort_keys=True) + "\n",
    }
