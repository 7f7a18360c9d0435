"""Makes ExecuTorch's Neutron backend work with a chosen converter flavor.

The backend imports `eiq_neutron_sdk` by that name when it is imported itself, and calls the converter in a child
process without a time limit and with the pipeline's current folder. `provide_sdk` settles the first, `converting` the
second.
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

from pipeline.backends.neutron.converter import (
    INSTALLED_SDK,
    MISSING_SDK,
    REFERENCE_SDK,
    Conversion,
    ConverterFlavor,
    ConverterOptions,
    convert,
    describe,
    installed_sdk,
)
from pipeline.contracts import LowerdeckError

# The one module of the backend that binds the SDK.
_BACKEND_MODULE = "executorch.backends.nxp.backend.neutron_converter_manager"
_SUBMODULES = ("neutron_converter", "neutron_library_utils")

_provided: ConverterFlavor | None = None

OnPartition = Callable[[str, bytes, Conversion], None]
"""Called as (delegation tag, LiteRT model, what became of it)."""


def provide_sdk(flavor: ConverterFlavor) -> None:
    """Make `import eiq_neutron_sdk` give what `flavor` needs; call this before importing executorch.backends.nxp.

    The backend gets the module itself where that is NXP's installed SDK or the reference flavor. For an older release,
    or one in another environment, it gets a stand-in that knows its targets; conversion then needs `converting`.

    Raises:
        LowerdeckError: the SDK is not installed, or the backend was imported with another flavor already: a process
            can use one.
    """
    global _provided
    if _same_sdk(_provided, flavor):
        return
    if _BACKEND_MODULE in sys.modules and (_provided is not None or not _is_installed_here(flavor)):
        used = "the installed eiq_neutron_sdk" if _provided is None else f"flavor {_provided.name}"
        raise LowerdeckError(
            f"ExecuTorch's Neutron backend was imported with {used} in this process and cannot change to flavor "
            f"{flavor.name}. Use a process for each flavor."
        )
    package = _package(flavor)
    for name in (INSTALLED_SDK, *(f"{INSTALLED_SDK}.{submodule}" for submodule in _SUBMODULES)):
        if _provided is not None:  # what an earlier call put there
            sys.modules.pop(name, None)
    if package is not None:
        sys.modules[INSTALLED_SDK] = package
        for name in _SUBMODULES:
            sys.modules[f"{INSTALLED_SDK}.{name}"] = getattr(package, name)
    _provided = flavor


@contextmanager
def converting(
    flavor: ConverterFlavor,
    workdir: Path,
    on_partition: OnPartition,
    extra_options: Mapping[str, bool | int | float | str] | None = None,
) -> Iterator[None]:
    """While open, ExecuTorch's backend converts through `converter.convert`, each partition in a folder of its own.

    The folder is `workdir`/<delegation tag>, or <delegation tag>-2 and so on where a tag comes again; it keeps the
    model, the log and `_kernel_selection.c`. Not for several threads at once: it replaces a method of the backend.

    Args:
        flavor: as given to `provide_sdk`, which this calls.
        workdir: existing folder.
        on_partition: called after each partition.
        extra_options: options of the SDK that ExecuTorch does not set, by the SDK's names.

    Raises:
        LowerdeckError: as `provide_sdk`.
        ConversionError: out of `to_backend`, when the converter fails.
    """
    provide_sdk(flavor)
    from executorch.backends.nxp.backend.neutron_converter_manager import NeutronConverterManager

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
        litert = bytes(tflite_model)
        conversion = convert(flavor, litert, target, options, _fresh_folder(workdir, delegation_tag))
        if use_profiling:
            _emit(conversion.log)
        on_partition(delegation_tag, litert, conversion)
        return conversion.model

    original = NeutronConverterManager.convert
    NeutronConverterManager.convert = convert_partition
    try:
        yield
    finally:
        NeutronConverterManager.convert = original


def _same_sdk(one: ConverterFlavor | None, other: ConverterFlavor) -> bool:
    """Whether both give the backend the same module; names and time limits do not matter to it."""
    return one is not None and (one.sdk_module, one.python, one.sys_path) == (
        other.sdk_module,
        other.python,
        other.sys_path,
    )


def _is_installed_here(flavor: ConverterFlavor) -> bool:
    """Whether the flavor is NXP's SDK in this very environment, so that the backend can import it itself."""
    return (flavor.sdk_module, flavor.python, flavor.sys_path) == (INSTALLED_SDK, sys.executable, ())


def _package(flavor: ConverterFlavor) -> ModuleType | None:
    """What `import eiq_neutron_sdk` has to give, None where it finds NXP's SDK by itself."""
    if flavor.host_only:
        return importlib.import_module(REFERENCE_SDK)
    if not _is_installed_here(flavor):
        return _stand_in(flavor)
    if not installed_sdk():
        raise LowerdeckError(f"Flavor {flavor.name} cannot be used. {MISSING_SDK}")
    return None


def _stand_in(flavor: ConverterFlavor) -> ModuleType:
    """A package with the SDK's targets, asked of the flavor's own interpreter."""

    @functools.cache
    def target(name: str) -> Any:
        found = describe(flavor, name).target
        return SimpleNamespace(
            name=found.name,
            subsystem=found.subsystem,
            numUnits=found.num_units,
            numPipes=found.num_pipes,
            numMacs=found.num_macs,
            hwVersion=found.hw_version,
        )

    def is_target(name: str) -> bool:
        if names is not None:
            return name in names
        try:
            target(name)
        except LowerdeckError:
            return False
        return True

    def refuse(*_: object) -> bytes:
        raise LowerdeckError(f"flavor {flavor.name} converts in a child process: open `converting` around the lowering")

    names = describe(flavor).targets
    package = ModuleType(INSTALLED_SDK, f"Stand-in for the SDK of flavor {flavor.name}.")
    converter = ModuleType(f"{INSTALLED_SDK}.neutron_converter")
    library = ModuleType(f"{INSTALLED_SDK}.neutron_library_utils")
    vars(converter).update(getNeutronTarget=target, CompilationContext=refuse, convertModel=refuse)
    vars(library).update(
        isNeutronTarget=is_target, getNeutronTargets=lambda: [SimpleNamespace(name=name) for name in names or ()]
    )
    vars(package).update(neutron_converter=converter, neutron_library_utils=library)
    return package


def _fresh_folder(workdir: Path, tag: str) -> Path:
    """`workdir`/`tag`, numbered where it exists: the methods of a program number their tags independently."""
    folder, number = workdir / tag, 1
    while folder.exists():
        number += 1
        folder = workdir / f"{tag}-{number}"
    return folder


def _emit(log: str) -> None:
    """Write `log` to file descriptor 1, which the backend captures to map Neutron kernels to operators."""
    data = log.encode()
    while data:
        data = data[os.write(1, data) :]
