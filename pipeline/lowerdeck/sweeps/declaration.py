"""The stages as dvc.yaml declares them, with dependencies, outputs and commands."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowerdeck.artifacts import paths
from lowerdeck.config.yaml_text import plain_values
from lowerdeck.contracts.errors import LowerdeckError

PARAMS_FILES = (paths.CONFIG.as_posix(), paths.CODE.as_posix())
"""Files of compose, on which stages depend key by key."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of dvc.yaml."""

    name: str
    module: str
    """Module for `python -m`, e.g. `stages.export`."""
    sources: tuple[str, ...]
    """Files and folders that no stage makes: code, configuration, data."""
    inputs: tuple[str, ...]
    """Outputs of earlier stages."""
    params: Mapping[str, tuple[str, ...]]
    """Dotted keys that it depends on, by file of `PARAMS_FILES`."""
    outputs: tuple[str, ...]
    """Files and folders that it makes."""


def read_stages(path: Path) -> tuple[Stage, ...]:
    """The stages of the dvc.yaml at `path`, each after those whose outputs it reads.

    Raises:
        LowerdeckError: the file declares something that sweeps do not support.
    """
    declared = plain_values(path.read_text(encoding="utf-8"))["stages"]
    outputs = {name: _outputs(fields) for name, fields in declared.items()}
    made = set(itertools.chain.from_iterable(outputs.values()))
    return _in_order([_stage(name, fields, outputs[name], made) for name, fields in declared.items()])


def _stage(name: str, fields: Mapping[str, Any], outputs: tuple[str, ...], made: set[str]) -> Stage:
    module = re.fullmatch(r"(?:exec )?python -m ([\w.]+)", fields["cmd"])
    if module is None:
        raise LowerdeckError(f"dvc.yaml: stage {name} runs {fields['cmd']!r}; a sweep runs `python -m MODULE` only")
    return Stage(
        name=name,
        module=module[1],
        sources=tuple(path for path in fields.get("deps", ()) if path not in made),
        inputs=tuple(path for path in fields.get("deps", ()) if path in made),
        params=_params(name, fields),
        outputs=outputs,
    )


def _outputs(fields: Mapping[str, Any]) -> tuple[str, ...]:
    entries = [entry for kind in ("outs", "metrics", "plots") for entry in fields.get(kind, ())]
    return tuple(entry if isinstance(entry, str) else next(iter(entry)) for entry in entries)


def _params(name: str, fields: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Dotted keys by file, all in files that compose writes."""
    params: dict[str, tuple[str, ...]] = {}
    for entry in fields.get("params", ()):
        if not isinstance(entry, Mapping) or set(entry) - set(PARAMS_FILES):
            raise LowerdeckError(
                f"dvc.yaml: stage {name} has params of another file than {' and '.join(PARAMS_FILES)}: {entry}"
            )
        params |= {file: tuple(keys) for file, keys in entry.items()}
    return params


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
