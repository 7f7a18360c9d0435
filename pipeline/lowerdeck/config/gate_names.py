"""Whether the metrics that gates bound can be measured, as far as it is known before the build."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lowerdeck.config.problems import Problem
from lowerdeck.evaluation import gates
from lowerdeck.evaluation.metric_names import is_of_task, may_be_measured, near_of_build
from lowerdeck.registry import components

RANDOM = "random_inputs"
"""The source of datasets whose targets mean nothing."""

if TYPE_CHECKING:
    from lowerdeck.config.schema import Config
    from lowerdeck.contracts.tasks import Task


def gate_problems(config: Config, task: Task, options: Any) -> Iterator[Problem]:
    """Gates on metrics that no build for this task has, which would fail after everything else was done.

    What modules in `evaluation.metrics` and the details of a user's task are called is known only when they are
    computed; evaluate checks these gates.

    Args:
        config: The configuration.
        task: The module of its task.
        options: The task's complete options.
    """
    bounds = {gate: bound for gate, bound in gates.bounds(config.gates).items() if bound is not None}
    named = config.gates.metrics
    for gate in named:
        field, bound = getattr(config.gates, gate, None), named[gate]
        if field is not None and bound is not None and field != bound:
            message = f"is {gates.exact(bound)}, and gates.{gate} is {gates.exact(field)}; leave one of them out"
            yield Problem(f"gates.metrics.{gate}", message)
    names_its_own = components.is_own(config.task.source) and hasattr(task, "details")
    if not bounds or config.evaluation.metrics or names_its_own:
        return
    metrics = [metric.name for metric in task.metrics(options)]
    for gate in bounds:
        if message := _unmeasured(gate.partition("_")[2], metrics, config, task):
            yield Problem(f"gates.metrics.{gate}" if gate in named else f"gates.{gate}", message)


def _unmeasured(name: str, metrics: Sequence[str], config: Config, task: Task) -> str:
    """Why no build with the task's `metrics` has the metric `name`, and what to do; empty if one may have it."""
    if task.TARGETS and config.dataset.source == RANDOM and is_of_task(name, metrics):
        return (
            f"dataset {config.dataset.name} has random samples, whose targets mean nothing, so that no {name} is "
            "measured; choose another dataset, or other gates (`lowerdeck conf gates`)"
        )
    if may_be_measured(name, metrics):
        return ""
    found = near_of_build(name, metrics)
    advice = f"did you mean {' or '.join(found)}?" if found else "`lowerdeck conf gates` lists bounds"
    own = f"it measures {', '.join(metrics)}, each as float_, quantized_ and delegated_"
    return f"task {config.task.name} has no metric {name}; {own if metrics else 'it measures none'}; {advice}"
