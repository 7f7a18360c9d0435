"""Which options of conf/flavor can be used here: their converters are asked for version and targets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lowerdeck import backends
from lowerdeck.config import flavor as flavors
from lowerdeck.config.options import option_file, option_names
from lowerdeck.config.problems import Problem, validate
from lowerdeck.config.schema import FlavorConfig
from lowerdeck.config.yaml_text import read_mapping
from lowerdeck.contracts.backends import FlavorReport
from lowerdeck.contracts.errors import LowerdeckError

_MAX_PROBES = 4
"""Converters that are queried at the same time."""


@dataclass(frozen=True, kw_only=True)
class Status:
    """The status of one option."""

    option: str
    """Name of the file in conf/flavor."""
    chosen: bool
    """Whether params.yaml chooses it."""
    backend: str | None
    installed: bool
    """Whether a build can use it."""
    converter: str | None = None
    """Product, e.g. `eiq_neutron_sdk`."""
    version: str | None = None
    targets: list[str] | None = None
    """Devices that it compiles for; null if it cannot list them."""
    target: dict[str, Any] | None = None
    """Properties of a device as reported by the converter, if it does."""
    host_only: bool = False
    """Whether its programs run on the host only."""
    missing_features: list[str] | None = None
    """Features of other releases that this one lacks."""
    problem: str | None = None
    """The missing part and how to fix it."""


def statuses(conf_dir: Path, params: dict[str, Any], timeout_s: float) -> list[Status]:
    """The options of conf/flavor by name; a converter that crashes or hangs does not block the others.

    Args:
        conf_dir: The folder conf.
        params: params.yaml: its overrides of `flavor` apply to the option that it chooses, and its plugins to all.
        timeout_s: Limit for querying one converter.
    """
    options = [name for name in option_names("flavor", conf_dir) if name != "default"]
    with ThreadPoolExecutor(_MAX_PROBES) as pool:
        return list(pool.map(lambda option: status(option, conf_dir, params, timeout_s), options))


def status(option: str, conf_dir: Path, params: dict[str, Any], timeout_s: float) -> Status:
    """The status of one option; arguments as for `statuses`."""
    found = Status(option=option, chosen=params.get("flavor") == option, backend=None, installed=False)
    try:
        values = read_mapping(option_file("flavor", option, conf_dir))
        if isinstance(values.get("backend"), str):
            found = replace(found, backend=values["backend"])
        if found.chosen:
            overrides = (params.get("overrides") or {}).get("flavor") or {}
            options = {**(values.get("options") or {}), **(overrides.get("options") or {})}
            values |= overrides | {"options": options}
        report = _report(values, timeout_s, params.get("plugins") or [])
    except LowerdeckError as error:
        return replace(found, problem=str(error))
    converter = report.converter
    return replace(
        found,
        installed=True,
        converter=converter.name,
        version=converter.version,
        targets=list(report.targets) if report.targets is not None else None,
        target=dict(converter.target) or None,
        host_only=converter.host_only,
        missing_features=list(report.missing_features),
    )


def _report(values: dict[str, Any], timeout_s: float, plugins: list[str]) -> FlavorReport:
    """The converter's report.

    Raises:
        LowerdeckError: the option is incomplete or its converter is not usable.
    """
    open_keys = [key for key, value in (values.get("options") or {}).items() if value == "???"]
    if open_keys:
        listed = ", ".join(f"flavor.options.{key}" for key in open_keys)
        raise LowerdeckError(f"{listed} must be set by you, in a copy of the file or under `overrides` in params.yaml")
    config, problems = validate(FlavorConfig, values, "flavor")
    _raise_problems(problems)
    if config.backend not in backends.available():
        raise LowerdeckError(f"flavor.backend: there is no backend {config.backend!r}")
    config, problems = flavors.completed(config, backends.source(config.backend), plugins)
    _raise_problems(problems)
    limited = replace(config, timeout_s=min(config.timeout_s, timeout_s))
    report = backends.probe(config.backend, flavors.flavor_of(limited))
    report.converter.require_version(config.version)
    return report


def _raise_problems(problems: list[Problem]) -> None:
    if problems:
        raise LowerdeckError("\n".join(map(str, problems)))
