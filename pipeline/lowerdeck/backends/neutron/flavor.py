"""Converts the configuration section `flavor` to a converter, and a converter to its record."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.machinery import PathFinder

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
from lowerdeck.registry import interpreters

_VENDORS_MODULES = re.compile(r"eiq_neutron_sdk|neutron_converter(_SDK_\d\d_\d\d)?")
"""Packages of NXP's releases."""


def problems(flavor: Flavor[FlavorOptions], plugins: Sequence[str]) -> Problems:
    """Yield paths that cannot be reached or are not opened, and options that would be ignored.

    Args:
        flavor: The flavor; keys are relative to it.
        plugins: What params.yaml opens: import prefixes and paths.
    """
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
    elif options.module is not None and not _module_is_open(options.module, plugins):
        yield "options.module", interpreters.not_open("imports a package that is not NXP's", options.module, plugins)
    if options.python is not None and (reason := interpreters.interpreter_problem(options.python, plugins)):
        yield "options.python", reason
    for folder in options.sys_path:
        if reason := interpreters.folder_problem(folder, plugins):
            yield "options.sys_path", reason


def missing(flavor: Flavor[FlavorOptions]) -> str | None:
    """Why the converter's package cannot be imported, found without importing it; None where no reason is found.

    Packages of another interpreter are left to the stages: only starting it would show them.
    """
    if flavor.converter == "reference" or flavor.options.python is not None:
        return None
    module = flavor.options.module or INSTALLED_SDK
    folders = [str(interpreters.expanded(folder)) for folder in flavor.options.sys_path]
    if PathFinder.find_spec(module.partition(".")[0], [*folders, *sys.path]) is not None:
        return None
    return (
        f"the package {module} is not installed; install it from NXP's package index (docs/sdk_day.md), name the "
        "interpreter of its environment (flavor.options.python), or choose `flavor: reference`"
    )


def converter_flavor(flavor: Flavor[FlavorOptions]) -> ConverterFlavor:
    """Return the converter of a flavor; its paths are relative to the current folder."""
    options = flavor.options
    if flavor.converter == "reference":
        return ConverterFlavor(flavor.name, REFERENCE_SDK, timeout_s=flavor.timeout_s)
    assert options.module or flavor.converter == "eiq_neutron_sdk", "compose refuses neutron_converter without a module"
    return ConverterFlavor(
        flavor.name,
        options.module or INSTALLED_SDK,
        python=sys.executable if options.python is None else str(interpreters.expanded(options.python)),
        timeout_s=flavor.timeout_s,
        sys_path=tuple(str(interpreters.expanded(folder)) for folder in options.sys_path),
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


def _module_is_open(module: str, plugins: Sequence[str]) -> bool:
    is_vendors = _VENDORS_MODULES.fullmatch(module) is not None
    return is_vendors or any(module == prefix or module.startswith(f"{prefix}.") for prefix in plugins)
