"""Hydra's part of a sweep: its sweepers go over the values, its launchers run the points, here or on other machines."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lowerdeck.compat.hydra import VALIDATE_BATCH
from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.sweep import arguments

_OWN_KEYS = ("hydra", "sweep", "defaults")
"""Of a named sweep, beside what params.yaml may hold."""


def read_experiment(conf: Path, typed: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Name and content of the file of conf/experiment that `typed` overrides choose; empty where they choose none.

    Raises:
        ConfigurationError: there is no such file, or it is no mapping.
    """
    import yaml

    chosen = [override for override in arguments.parse(typed) if override.key_or_group == arguments.EXPERIMENT]
    if not chosen:
        return "", {}
    name = str(chosen[-1].value())
    known = sorted(path.stem for path in (conf / arguments.EXPERIMENT).glob("*.yaml"))
    if name not in known:
        from lowerdeck.registry import components

        raise ConfigurationError(
            f"experiment={name}: there is no conf/experiment/{name}.yaml; there are: {', '.join(known) or 'none'}."
            f"{components.did_you_mean(name, known)}"
        )
    values = yaml.safe_load((conf / arguments.EXPERIMENT / f"{name}.yaml").read_text(encoding="utf-8"))
    if not isinstance(values, dict):
        raise ConfigurationError(f"conf/experiment/{name}.yaml has to hold a mapping")
    unknown = [key for key in values if key not in (*arguments.CHOICES, "overrides", *_OWN_KEYS)]
    if unknown:
        raise ConfigurationError(
            f"conf/experiment/{name}.yaml: {unknown[0]} is none of {', '.join(arguments.CHOICES)}, overrides, hydra, "
            "sweep; single values stand under `overrides`, as in params.yaml"
        )
    return name, values


def sweeper_arguments(experiment: Mapping[str, Any]) -> list[str]:
    """The values that a named sweep goes over, in the form of `arguments.to_hydra_overrides`."""
    return [f"{key}={value}" for key, value in _translated(experiment).items()]


def _translated(experiment: Mapping[str, Any]) -> dict[str, str]:
    params = ((experiment.get("hydra") or {}).get("sweeper") or {}).get("params") or {}
    return {arguments.hydra_key(key.removeprefix("++").removeprefix("+")): str(value) for key, value in params.items()}


def write_configuration(folder: Path, params: Mapping[str, Any], name: str, experiment: Mapping[str, Any]) -> None:
    """What Hydra composes for a sweep: params.yaml, and on top the named sweep with its sweeper's settings.

    Args:
        folder: Where to write it.
        params: params.yaml.
        name: Of the named sweep, if any.
        experiment: Its content.
    """
    from lowerdeck.artifacts.files import write_json, write_text

    write_json(folder / "config.yaml", {"defaults": ["_self_", {arguments.EXPERIMENT: None}], **params})
    if name:
        own = {key: value for key, value in experiment.items() if key != "sweep"}
        if _translated(experiment):
            own["hydra"] = {**own["hydra"], "sweeper": {**own["hydra"]["sweeper"], "params": _translated(experiment)}}
        place = folder / arguments.EXPERIMENT / f"{name}.yaml"
        write_json(place, own)
        write_text(place, "# @package _global_\n" + place.read_text(encoding="utf-8"))


def searches(experiment: Mapping[str, Any], given: Sequence[str]) -> bool:
    """Whether a sweeper chooses points by what came of others, so that they are not known before."""
    chosen = [text.partition("=")[2] for text in given if text.startswith("hydra/sweeper=")]
    for entry in experiment.get("defaults") or ():
        if isinstance(entry, Mapping):
            chosen += [str(value) for key, value in entry.items() if key.split()[-1].strip("/") == "hydra/sweeper"]
    return any(name != "basic" for name in chosen)


def runs_in_process(given: Sequence[str]) -> bool:
    """Whether the launcher that `given` overrides choose runs points on this machine, as far as is known."""
    chosen = [text.partition("=")[2] for text in given if text.startswith("hydra/launcher=")]
    return not chosen or chosen[-1] in ("basic", "joblib", "submitit_local")


def multirun(folder: Path, task: Callable[[Any], Any], given: Sequence[str]) -> None:
    """Run `task` for every point that Hydra's sweeper asks for.

    Args:
        folder: As `write_configuration` wrote it.
        task: Hydra's task function.
        given: Overrides in the form of `arguments.to_hydra_overrides`.

    Raises:
        LowerdeckError: Hydra refuses, e.g. a launcher that is not installed; or a task raised it.
    """
    from hydra._internal.hydra import Hydra
    from hydra._internal.utils import create_config_search_path
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException

    runs = folder / "runs"
    own = [
        f"hydra.sweep.dir={_quoted(runs)}",
        "hydra.sweep.subdir=.",
        "hydra.output_subdir=null",
        "hydra.job.chdir=false",
        "hydra/job_logging=disabled",
        "hydra/hydra_logging=disabled",
    ]
    GlobalHydra.instance().clear()
    hydra = Hydra.create_main_hydra2(
        task_name="lowerdeck", config_search_path=create_config_search_path(str(folder.absolute()))
    )
    try:
        # Sweepers need not compose every point before the first one runs: the sweep has composed them all.
        with _quiet(), VALIDATE_BATCH.active(lambda sweeper, batch: None):
            hydra.multirun("config", task, [*own, *given], with_log_configuration=False)
    except HydraException as error:
        raise LowerdeckError(f"Hydra refuses this sweep: {' '.join(str(error.__cause__ or error).split())}") from error
    except (RuntimeError, ConnectionError) as error:
        # Points run in processes of their own: this comes of a launcher, e.g. for want of a cluster, or of a worker.
        raise LowerdeckError(
            f"the launcher gave up: {type(error).__name__}: {' '.join(str(error).split())}\nStarted again, the sweep "
            "goes on where it stopped."
        ) from error
    finally:
        GlobalHydra.instance().clear()


def _quoted(path: Path) -> str:
    return "'" + str(path.absolute()).replace("\\", "\\\\").replace("'", "\\'") + "'"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep Hydra's advice to set HYDRA_FULL_ERROR off the terminal."""
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ.setdefault("HYDRA_FULL_ERROR", "0")
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("HYDRA_FULL_ERROR", None)
