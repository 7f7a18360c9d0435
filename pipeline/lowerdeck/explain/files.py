"""The plan as files for people: the page, and the graph for Model Explorer."""

from __future__ import annotations

import json
from pathlib import Path

from lowerdeck import artifacts
from lowerdeck.config.schema import Config
from lowerdeck.contracts import DelegationPlan
from lowerdeck.explain import model_explorer, page


def write(plan: DelegationPlan, config: Config | None, folder: Path) -> list[Path]:
    """Write both for a build's plan; the same plan and configuration give the same bytes.

    Args:
        plan: Of the build.
        config: Its resolved configuration, for the names of model and target; None where there is none.
        folder: Where to.

    Returns:
        The files.
    """
    title = plan.backend if config is None else f"{config.model.name} on {config.target.name}"
    files = [folder / artifacts.EXPLANATION.name, folder / artifacts.MODEL_EXPLORER.name]
    artifacts.write_text(files[0], page.render(plan, title))
    artifacts.write_text(files[1], json.dumps(model_explorer.clusters(plan), sort_keys=True) + "\n")
    return files
