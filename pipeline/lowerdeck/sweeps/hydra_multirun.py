"""Hydra's part of a sweep: its sweepers choose the points, its launchers run them, here or on other machines."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lowerdeck.compat.hydra import VALIDATE_BATCH
from lowerdeck.config.yaml_text import read_mapping
from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.sweeps import arguments

_OWN_KEYS = ("hydra", "sweep", "defaults")
"""Keys of a named sweep in addition to those of params.yaml."""


def read_experiment(conf: Path, typed: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Name and content of the file in conf/experiment that `typed` overrides choose; empty if they choose none.

    Raises:
        ConfigurationError: there is no such file, or it is not a valid sweep.
    """
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
    values = read_mapping(conf / arguments.EXPERIMENT / f"{name}.yaml")
    unknown = [key for key in values if key not in (*arguments.CHOICES, "overrides", *_OWN_KEYS)]
    if unknown:
        raise ConfigurationError(
            f"conf/experiment/{name}.yaml: {unknown[0]} is none of {', '.join(arguments.CHOICES)}, overrides, hydra, "
            "sweep; single values belong under `overrides`, as in params.yaml"
        )
    _check_cases(name, (values.get("sweep") or {}).get(arguments.CASES) or {})
    return name, values


def _check_cases(name: str, cases: Any) -> None:
    """Raise ConfigurationError unless every case has the form of params.yaml."""
    if isinstance(cases, dict) and all(isinstance(case, dict) for case in cases.values()):
        unknown = [key for case in cases.values() for key in case if key not in arguments.PARAMS]
        if not unknown:
            return
        raise ConfigurationError(
            f"conf/experiment/{name}.yaml: {unknown[0]} in sweep.cases is none of {', '.join(arguments.PARAMS)}; a "
            "case has the form of params.yaml"
        )
    raise ConfigurationError(
        f"conf/experiment/{name}.yaml: sweep.cases must map the name of each case to its choices, as in params.yaml"
    )


def basis(params: Mapping[str, Any], experiment: Mapping[str, Any]) -> dict[str, Any]:
    """What all points of a named sweep have in common, in the form of params.yaml, and its cases."""
    base = arguments.merged(params, {key: experiment[key] for key in experiment if key in arguments.PARAMS})
    cases = (experiment.get("sweep") or {}).get(arguments.CASES)
    return base | ({arguments.CASES: cases} if cases else {})


def sweeper_arguments(experiment: Mapping[str, Any]) -> list[str]:
    """The values that a named sweep varies, in the form of `arguments.to_hydra_overrides`."""
    return [f"{key}={value}" for key, value in _translated(experiment).items()]


def _translated(experiment: Mapping[str, Any]) -> dict[str, str]:
    params = ((experiment.get("hydra") or {}).get("sweeper") or {}).get("params") or {}
    return {arguments.hydra_key(key.removeprefix("++").removeprefix("+")): str(value) for key, value in params.items()}


def write_configuration(folder: Path, params: Mapping[str, Any], name: str, experiment: Mapping[str, Any]) -> None:
    """Write Hydra's configuration of a sweep to `folder`: `params` and the content of the named sweep, if any."""
    from lowerdeck.artifacts.files import write_json, write_text

    write_json(folder / "config.yaml", {"defaults": ["_self_", {arguments.EXPERIMENT: None}], **params})
    if name:
        own = {key: value for key, value in experiment.items() if key != "sweep"}
        if _translated(experiment):
            own["hydra"] = {**own["hydra"], "sweeper": {**own["hydra"]["sweeper"], "params": _translated(experiment)}}
        content = json.dumps(own, indent=2, sort_keys=True, allow_nan=False)
        write_text(folder / arguments.EXPERIMENT / f"{name}.yaml", f"# @package _global_\n{content}\n")


def searches(experiment: Mapping[str, Any], given: Sequence[str]) -> bool:
    """Whether the sweeper chooses points by the metrics of earlier ones, so that they are not known in advance."""
    chosen = [text.partition("=")[2] for text in given if text.startswith("hydra/sweeper=")]
    for entry in experiment.get("defaults") or ():
        if isinstance(entry, Mapping):
            chosen += [str(value) for key, value in entry.items() if key.split()[-1].strip("/") == "hydra/sweeper"]
    return any(name != "basic" for name in chosen)


def runs_in_process(given: Sequence[str]) -> bool:
    """Whether `given` overrides choose a launcher that is known to run points on this machine."""
    chosen = [text.partition("=")[2] for text in given if text.startswith("hydra/launcher=")]
    return not chosen or chosen[-1] in ("basic", "joblib", "submitit_local")


class RejectedError(LowerdeckError):
    """Hydra rejects a sweep."""


def multirun(folder: Path, task: Callable[[Any], Any], given: Sequence[str]) -> None:
    """Run `task` for every point that Hydra's sweeper proposes.

    Args:
        folder: Configuration written by `write_configuration`.
        task: Hydra's task function.
        given: Overrides in the form of `arguments.to_hydra_overrides`.

    Raises:
        RejectedError: Hydra rejects the sweep, e.g. because its launcher is not installed.
        LowerdeckError: a task raised it.
    """
    from hydra._internal.hydra import Hydra
    from hydra._internal.utils import create_config_search_path
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException

    runs = str((folder / "runs").absolute()).replace("\\", "\\\\").replace("'", "\\'")
    own = [
        f"hydra.sweep.dir='{runs}'",
        "hydra.sweep.subdir=.",
        "hydra.output_subdir=null",
        "hydra.job.chdir=false",
        "hydra/job_logging=none",
        "hydra/hydra_logging=none",
    ]
    GlobalHydra.instance().clear()
    hydra = Hydra.create_main_hydra2(
        task_name="lowerdeck", config_search_path=create_config_search_path(str(folder.absolute()))
    )
    try:
        # The sweep has composed every point already, so sweepers need not validate them before the first one runs.
        with _quiet(), VALIDATE_BATCH.active(lambda sweeper, batch: None):
            hydra.multirun("config", task, [*own, *given], with_log_configuration=False)
    except HydraException as error:
        raise RejectedError(f"Hydra rejects this sweep: {' '.join(str(error.__cause__ or error).split())}") from error
    except (RuntimeError, ConnectionError) as error:
        # Stages run in separate processes, so the error is that of a launcher, e.g. without a cluster, or of a worker.
        raise LowerdeckError(
            f"the launcher failed: {type(error).__name__}: {' '.join(str(error).split())}\nStart the sweep again to "
            "continue where it stopped."
        ) from error
    finally:
        GlobalHydra.instance().clear()


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
