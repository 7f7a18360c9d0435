"""Whether the metrics that gates bound can be measured, as far as it is known before the build."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lowerdeck.config.problems import Problem
from lowerdeck.evaluation import gates
from lowerdeck.evaluation.metric_names import may_be_measured, near_of_build
from lowerdeck.registry import components

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
        name = gate.partition("_")[2]
        if not may_be_measured(name, metrics):
            found = near_of_build(name, metrics)
            advice = f"did you mean {' or '.join(found)}?" if found else "`lowerdeck conf gates` lists bounds"
            key = f"gates.metrics.{gate}" if gate in named else f"gates.{gate}"
            own = f"it measures {', '.join(metrics)}, each as float_, quantized_ and delegated_"
            message = (
                f"task {config.task.name} has no metric {name}; {own if metrics else 'it measures none'}; {advice}"
            )
            yield Problem(key, message)
