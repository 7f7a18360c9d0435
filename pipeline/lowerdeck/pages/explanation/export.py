"""The files that explain a plan: the page, and the graph for Model Explorer."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from lowerdeck.artifacts import paths
from lowerdeck.config.schema import Config
from lowerdeck.contracts.plan import DelegationPlan
from lowerdeck.explain import model_explorer
from lowerdeck.explain.causes import Trial
from lowerdeck.explain.costs import Profile
from lowerdeck.fingerprints.digests import digest
from lowerdeck.fingerprints.keys import NOT_OF_A_BUILD
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
    has_bundle: bool = True,
) -> dict[str, str]:
    """File name -> text, equal for equal arguments.

    Args:
        plan: The plan of a build.
        config: Its resolved configuration, for the names of model and target; may be None.
        tried: Changes that were tried.
        profile: What a device measured of its operators; None where none did.
        run_page: The page of the build's MLflow run; None without one.
        has_report: Whether report.html of the same build stands beside the page.
        has_bundle: Whether firmware.zip of the same build does.
    """
    title = plan.backend if config is None else f"{config.model.name} on {config.target.name}"
    explanation = page.render(
        plan,
        title,
        tried,
        profile,
        has_report=has_report,
        has_bundle=has_bundle,
        run_page=run_page,
        digest=_digest(plan, config),
    )
    return {
        paths.EXPLANATION.name: explanation,
        paths.MODEL_EXPLORER.name: json.dumps(model_explorer.clusters(plan), sort_keys=True) + "\n",
    }


def tried_before(plan: DelegationPlan, config: Config | None) -> list[Trial]:
    """The changes of this build that `explain --try` tried, which the page in build/ has; none if it is of another."""
    if not paths.EXPLANATION.is_file():
        return []
    text = paths.EXPLANATION.read_text(encoding="utf-8", errors="replace")
    return page.tried_in(text, plan, _digest(plan, config))


def _digest(plan: DelegationPlan, config: Config | None) -> str:
    """SHA-256 over what trials depend on, beside code."""
    sections = {} if config is None else dataclasses.asdict(config)
    return digest([dataclasses.asdict(plan), {name: sections[name] for name in sections.keys() - set(NOT_OF_A_BUILD)}])
