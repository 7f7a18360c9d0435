"""What each stage depends on, makes and runs: dvc.yaml says it for builds, and the same holds for sweeps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowerdeck.config.yaml_text import plain_values
from lowerdeck.contracts.errors import LowerdeckError


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of dvc.yaml."""

    name: str
    module: str
    """What `python -m` runs, e.g. `stages.export`."""
    sources: tuple[str, ...]
    """Files and folders that no stage makes: code, configuration, data."""
    inputs: tuple[str, ...]
    """Outputs of earlier stages."""
    params: tuple[str, ...]
    """Dotted keys of the resolved configuration."""
    outputs: tuple[str, ...]
    """Files and folders that it makes."""


def read_stages(path: Path) -> tuple[Stage, ...]:
    """The stages of `path` in an order in which each comes after those whose outputs it takes.

    Raises:
        LowerdeckError: the file declares something that a sweep cannot do.
    """
    declared = plain_values(path.read_text(encoding="utf-8"))
    outputs = {name: _outputs(fields) for name, fields in declared["stages"].items()}
    made = {output for made_by_one in outputs.values() for output in made_by_one}
    stages = [_stage(name, fields, outputs[name], made) for name, fields in declared["stages"].items()]
    return _in_order(stages)


def _stage(name: str, fields: Mapping[str, Any], outputs: tuple[str, ...], made: set[str]) -> Stage:
    module = re.fullmatch(r"(?:exec )?python -m ([\w.]+)", fields["cmd"])
    if module is None:
        raise LowerdeckError(f"dvc.yaml: stage {name} runs {fields['cmd']!r}; a sweep runs `python -m MODULE` only")
    return Stage(
        name=name,
        module=module[1],
        sources=tuple(path for path in fields.get("deps", ()) if path not in made),
        inputs=tuple(path for path in fields.get("deps", ()) if path in made),
        params=tuple(key for keys in _of_resolved_configuration(name, fields) for key in keys),
        outputs=outputs,
    )


def _outputs(fields: Mapping[str, Any]) -> tuple[str, ...]:
    entries = [entry for kind in ("outs", "metrics", "plots") for entry in fields.get(kind, ())]
    return tuple(entry if isinstance(entry, str) else next(iter(entry)) for entry in entries)


def _of_resolved_configuration(name: str, fields: Mapping[str, Any]) -> list[list[str]]:
    """The lists of keys below `params`, which all have to be of build/config.yaml."""
    lists = []
    for entry in fields.get("params", ()):
        if not isinstance(entry, Mapping) or list(entry) != ["build/config.yaml"]:
            raise LowerdeckError(f"dvc.yaml: stage {name} has params of another file than build/config.yaml: {entry}")
        lists.append(list(entry["build/config.yaml"]))
    return lists


def _in_order(stages: list[Stage]) -> tuple[Stage, ...]:
    ordered: list[Stage] = []
    waiting = list(stages)
    while waiting:
        made = {output for stage in ordered for output in stage.outputs}
        ready = next((stage for stage in waiting if made.issuperset(stage.inputs)), None)
        if ready is None:
            raise LowerdeckError(f"dvc.yaml: {', '.join(stage.name for stage in waiting)} wait for each other")
        ordered.append(ready)
        waiting.remove(ready)
    return tuple(ordered)
