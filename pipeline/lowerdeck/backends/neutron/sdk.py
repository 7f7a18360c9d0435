"""Makes ExecuTorch's Neutron backend use a chosen converter flavor.

The backend imports `eiq_neutron_sdk` by that name, and calls the converter in a child process without a time limit and
with the pipeline's current folder. `provide_sdk` replaces the import, `intercept_conversion` the call. The pipeline's
process never imports NXP's native code: a child process reads the properties of targets, so flavors can be switched.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from lowerdeck.backends.neutron.converter import (
    INSTALLED_SDK,
    REFERENCE_SDK,
    Conversion,
    ConverterFlavor,
    ConverterOptions,
    SdkDescription,
    convert,
    describe,
    failure_message,
)
from lowerdeck.compat import nxp
from lowerdeck.compat.replacement import provide_module
from lowerdeck.contracts.errors import ConversionError, LowerdeckError

_BOUND = {"neutron_converter": nxp.NEUTRON_CONVERTER, "neutron_library_utils": nxp.NEUTRON_LIBRARY_UTILS}
"""Modules of the SDK, and where the backend binds them."""

OnPartition = Callable[[str, bytes, Conversion], None]
"""(delegation tag, LiteRT model, its conversion) -> None."""


def provide_sdk(flavor: ConverterFlavor) -> None:
    """Make executorch.backends.nxp use the targets of `flavor`; call this before using the backend.

    The backend imports the reference flavor itself, or a stub with the targets of any other flavor, whose conversion
    needs `intercept_conversion`.

    Raises:
        LowerdeckError: the flavor cannot be used; the message describes how to fix it.
    """
    package = _package(flavor)
    provide_module(INSTALLED_SDK, package)
    for name, bound in _BOUND.items():
        provide_module(f"{INSTALLED_SDK}.{name}", getattr(package, name))
        if bound.module in sys.modules:  # bound to another flavor
            bound.apply(getattr(package, name))


@functools.cache
def describe_cached(flavor: ConverterFlavor, target: str) -> SdkDescription:
    """Call `converter.describe` once per process."""
    return describe(flavor, target)


@contextmanager
def intercept_conversion(
    flavor: ConverterFlavor,
    workdir: Path,
    on_partition: OnPartition,
    extra_options: Mapping[str, bool | int | float | str] | None = None,
) -> Iterator[None]:
    """Make ExecuTorch's backend convert through `converter.convert`, each partition in its own folder.

    The folder is `workdir`/<delegation tag>, or <delegation tag>-2 and so on for repeated tags; the model, the log and
    the converter's files stay there. Not thread-safe: it replaces a method of the backend.

    Args:
        flavor: as given to `provide_sdk`, which this calls.
        workdir: existing folder.
        on_partition: called after each partition.
        extra_options: options of the SDK that ExecuTorch does not set, by the SDK's names.

    Raises:
        LowerdeckError: as `provide_sdk`.
        ConversionError: from within `to_backend`, if the converter fails or another version described its targets.
    """
    provide_sdk(flavor)

    def convert_partition(
        manager: Any,
        tflite_model: bytes,
        target: str,
        delegation_tag: str,
        fetch_constants_to_sram: bool = False,
        use_profiling: bool = False,
    ) -> bytes:
        options = ConverterOptions(
            fetch_constants_to_sram=fetch_constants_to_sram,
            dump_kernel_selection_code=manager.dump_kernel_selection_code,
            use_profiling=use_profiling,
            extra=extra_options or {},
        )
        litert, folder = bytes(tflite_model), _new_folder(workdir, delegation_tag)
        conversion = convert(flavor, litert, target, options, folder)
        if reason := _conversion_problem(conversion, describe_cached(flavor, target).version):
            raise ConversionError(failure_message(flavor, folder, f"The converter {flavor.name} {reason}"))
        if use_profiling:
            _emit(conversion.log)
        on_partition(delegation_tag, litert, conversion)
        return conversion.model

    with nxp.CONVERT.active(convert_partition):
        yield


def _conversion_problem(conversion: Conversion, version: str) -> str | None:
    """Why ExecuTorch could not use the conversion, or its converter is another version; None if valid."""
    from executorch.backends.nxp.neutron_node_extraction import extract_artifacts_from_neutron_node

    if conversion.version != version:
        return (
            f"has version {conversion.version}, but had version {version} when the program was partitioned for it: "
            "another release was installed meanwhile. Run `dvc repro -f partition`."
        )
    try:
        extract_artifacts_from_neutron_node(conversion.model)
    except (AssertionError, AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        # The reader expects well-formed models.
        return f"created a NeutronGraph operator that ExecuTorch cannot read: {error}"
    return None


@functools.cache
def _package(flavor: ConverterFlavor) -> ModuleType:
    """The package of `import eiq_neutron_sdk`: the reference flavor, or a stub with the targets of its SDK."""
    if flavor.host_only:
        return importlib.import_module(REFERENCE_SDK)

    @functools.cache
    def target(name: str) -> Any:
        found = describe_cached(flavor, name).target
        return SimpleNamespace(
            name=found.name,
            subsystem=found.subsystem,
            numUnits=found.num_units,
            numPipes=found.num_pipes,
            numMacs=found.num_macs,
            hwVersion=found.hw_version,
        )

    def is_target(name: str) -> bool:
        names = target_names()
        if names is not None:
            return name in names
        try:
            target(name)
        except LowerdeckError:
            return False
        return True

    def target_names() -> tuple[str, ...] | None:
        return describe_cached(flavor, "imxrt700").targets

    def refuse(*_: object) -> bytes:
        raise LowerdeckError(
            f"flavor {flavor.name} converts in a child process: open `intercept_conversion` around the lowering"
        )

    target_names()  # reports a broken flavor now
    package = ModuleType(INSTALLED_SDK, f"Stand-in for the SDK of flavor {flavor.name}.")
    converter = ModuleType(f"{INSTALLED_SDK}.neutron_converter")
    library = ModuleType(f"{INSTALLED_SDK}.neutron_library_utils")
    vars(converter).update(getNeutronTarget=target, CompilationContext=refuse, convertModel=refuse)
    vars(library).update(
        isNeutronTarget=is_target,
        getNeutronTargets=lambda: [SimpleNamespace(name=name) for name in target_names() or ()],
    )
    vars(package).update(neutron_converter=converter, neutron_library_utils=library)
    return package


def _new_folder(workdir: Path, tag: str) -> Path:
    """`workdir`/`tag`, numbered where it exists: the methods of a program number their tags independently."""
    folder, number = workdir / tag, 1
    while folder.exists():
        number += 1
        folder = workdir / f"{tag}-{number}"
    return folder


def _emit(log: str) -> None:
    """Write `log` to file descriptor 1, from which the backend maps Neutron kernels to operators."""
    data = log.encode()
    while data:
        data = data[os.write(1, data) :]
