"""Checks the metrics of a build against their bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lowerdeck.contracts.errors import GateError
from lowerdeck.evaluation.metric_names import near

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def bounds(section: DataclassInstance) -> dict[str, float | None]:
    """The bounds in the configuration's section `gates`; None where a gate is off."""
    return all_bounds(asdict(section))


def all_bounds(section: Mapping[str, Any]) -> dict[str, float | None]:
    """`bounds` of the section as plain values."""
    named = {gate: bound for gate, bound in section.items() if gate not in ("name", "metrics")}
    return named | dict(section.get("metrics") or {})


def is_of_device(gate: str) -> bool:
    """Whether a gate bounds what a device measures, which is known only after `measure`."""
    return gate.partition("_")[2].startswith(("device_", "measured_", "emulated_", "simulated_"))


def check_gates(bounds: Mapping[str, float | None], metrics: Mapping[str, Any]) -> None:
    """Check the gates that are on.

    Args:
        bounds: `min_METRIC` and `max_METRIC` with their bounds; None switches a gate off.
        metrics: The content of metrics.json.

    Raises:
        GateError: a gate fails, or its metric was not measured; the message lists all with their bounds and values.
    """
    if failed := failed_gates(bounds, metrics):
        num_on = sum(bound is not None for bound in bounds.values())
        lines = "\n  ".join(failed.values())
        raise GateError(f"{len(failed)} of {num_on} gates failed; the metrics are written nevertheless:\n  {lines}")


def failed_gates(bounds: Mapping[str, float | None], metrics: Mapping[str, Any]) -> dict[str, str]:
    """One line for each gate that fails, with its value and bound; arguments are those of `check_gates`."""
    failed = {}
    for gate, bound in bounds.items():
        if bound is None:
            continue
        side, _, name = gate.partition("_")
        assert side in ("min", "max"), gate
        value = metrics.get(name, "not measured")
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            advice = "" if name in metrics else _advice(name, metrics)
            failed[gate] = f"gates.{gate}: {name} is {value!r}, the bound is {exact(bound)}{advice}"
        # Negated comparisons, so that NaN fails.
        elif not (value >= bound if side == "min" else value <= bound):
            relation = f"{'less' if side == 'min' else 'more'} than the bound {exact(bound, value)}"
            failed[gate] = f"gates.{gate}: {name} is {exact(value, bound)}, {relation}"
    return failed


def _advice(name: str, metrics: Mapping[str, Any]) -> str:
    """What a bound of a metric that a build does not have may have meant."""
    numbers = [each for each, value in metrics.items() if isinstance(value, (int, float))]
    if found := near(name, numbers):
        return f". Did you mean {' or '.join(found)}?"
    return f"; the metrics of this build are in metrics.json, e.g. {', '.join(numbers[:3])}" if numbers else ""


def exact(value: float, other: float | None = None) -> str:
    """The value with ten significant digits: 0.98999 must not read 0.99 next to a bound of 0.99.

    Args:
        value: The value.
        other: What it stands next to; where that is different and would read the same, the value has all its digits.
    """
    if float(value).is_integer():
        return format(value, ".0f")
    text = format(value, ".10g")
    return repr(float(value)) if other is not None and value != other and text == exact(other) else text


def percent(share: float, digits: int = 1) -> str:
    """`share` in percent, rounded to `digits` behind the point; less than all never reads 100 %."""
    return f"{100 * share if share >= 1 else min(100 * share, 100 - 10**-digits):.{digits}f} %"
