"""From the section `flavor` of the configuration to a converter, and back to what is recorded of it."""

from __future__ import annotations

import sys
from dataclasses import asdict

from lowerdeck.backends.neutron import FlavorOptions, expand_path
from lowerdeck.backends.neutron.converter import (
    INSTALLED_SDK,
    REFERENCE_SDK,
    ConverterFlavor,
    SdkDescription,
    describe,
)
from lowerdeck.contracts.backends import FlavorReport
from lowerdeck.contracts.converter import Converter


def converter_flavor(name: str, converter: str, options: FlavorOptions, timeout_s: float) -> ConverterFlavor:
    """The converter that a flavor names; its paths are taken from the current folder."""
    if converter == "reference":
        return ConverterFlavor(name, REFERENCE_SDK, timeout_s=timeout_s)
    assert options.module or converter == "eiq_neutron_sdk", "compose refuses neutron_converter without a module"
    return ConverterFlavor(
        name,
        options.module or INSTALLED_SDK,
        python=sys.executable if options.python is None else str(expand_path(options.python)),
        timeout_s=timeout_s,
        sys_path=tuple(str(expand_path(folder)) for folder in options.sys_path),
    )


def converter_of(flavor: ConverterFlavor, found: SdkDescription) -> Converter:
    """What the record of a build says of its converter."""
    target = asdict(found.target)
    return Converter(
        flavor=flavor.name,
        name="lowerdeck-neutron-reference" if flavor.host_only else flavor.sdk_module,
        version=found.version,
        host_only=flavor.host_only,
        target=target | {"assumed": list(found.target.assumed)},
    )


def probe(*, flavor: str, converter_name: str, flavor_options: FlavorOptions, timeout_s: float) -> FlavorReport:
    """Ask a converter for its version and its targets.

    Raises:
        LowerdeckError: it is not installed or fails; says what is missing and how to fix it.
    """
    chosen = converter_flavor(flavor, converter_name, flavor_options, timeout_s)
    found = describe(chosen)
    return FlavorReport(
        converter=converter_of(chosen, found), targets=found.targets, missing_features=found.missing_features
    )
