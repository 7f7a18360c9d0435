"""Converts the configuration section `flavor` to a converter, and a converter to its record."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path

from lowerdeck.backends.neutron.converter import (
    INSTALLED_SDK,
    REFERENCE_SDK,
    ConverterFlavor,
    SdkDescription,
    describe,
)
from lowerdeck.backends.neutron.options import FlavorOptions
from lowerdeck.contracts.backends import Flavor, FlavorReport, Problems
from lowerdeck.contracts.converter import Converter


def problems(flavor: Flavor[FlavorOptions]) -> Problems:
    """Yield paths that cannot be reached and options that would be ignored; keys are relative to `flavor`."""
    options = flavor.options
    if flavor.converter == "reference":
        for name in ("module", "python", "sys_path"):
            if getattr(options, name):
                yield f"options.{name}", "cannot be set: the converter `reference` is part of this project"
        return
    if flavor.converter == "neutron_converter" and options.module is None:
        yield "options.module", "name the package of the release, e.g. neutron_converter_SDK_25_09"
    if options.module is not None and not all(part.isidentifier() for part in options.module.split(".")):
        yield "options.module", "is not a module name such as neutron_converter_SDK_25_09"
    if options.python is not None and (reason := _interpreter_problem(options.python)):
        yield "options.python", reason
    for folder in options.sys_path:
        if not _expand_path(folder).is_dir():
            yield "options.sys_path", f"there is no folder {_expand_path(folder)}"


def converter_flavor(flavor: Flavor[FlavorOptions]) -> ConverterFlavor:
    """Return the converter of a flavor; its paths are relative to the current folder."""
    options = flavor.options
    if flavor.converter == "reference":
        return ConverterFlavor(flavor.name, REFERENCE_SDK, timeout_s=flavor.timeout_s)
    assert options.module or flavor.converter == "eiq_neutron_sdk", "compose refuses neutron_converter without a module"
    return ConverterFlavor(
        flavor.name,
        options.module or INSTALLED_SDK,
        python=sys.executable if options.python is None else str(_expand_path(options.python)),
        timeout_s=flavor.timeout_s,
        sys_path=tuple(str(_expand_path(folder)) for folder in options.sys_path),
    )


def converter_of(flavor: ConverterFlavor, found: SdkDescription) -> Converter:
    """Return the converter as recorded for a build."""
    target = asdict(found.target)
    return Converter(
        flavor=flavor.name,
        name="lowerdeck-neutron-reference" if flavor.host_only else flavor.sdk_module,
        version=found.version,
        host_only=flavor.host_only,
        target=target | {"assumed": list(found.target.assumed)},
    )


def probe(flavor: Flavor[FlavorOptions]) -> FlavorReport:
    """Ask a converter for its version and its targets.

    Raises:
        LowerdeckError: it is not installed or fails; the message names what is missing and how to fix it.
    """
    chosen = converter_flavor(flavor)
    found = describe(chosen)
    return FlavorReport(
        converter=converter_of(chosen, found), targets=found.targets, missing_features=found.missing_features
    )


def _expand_path(path: str) -> Path:
    """`path` with `~` expanded, relative to the current folder, which is the project's.

    Links are not resolved: the interpreter of a virtual environment is a link that finds its environment by its path.
    """
    return Path.cwd() / Path(path).expanduser()


def _interpreter_problem(python: str) -> str | None:
    """Why `python` cannot be started; None where no reason is found."""
    path = _expand_path(python)
    if path.is_dir():
        return f"{path} is a folder; name the interpreter in it, {Path(python) / 'bin' / 'python'}"
    if not path.is_file():
        return f"there is no file {path}; name the interpreter of the environment that has the converter"
    return None if os.access(path, os.X_OK) else f"{path} is not executable for you"
