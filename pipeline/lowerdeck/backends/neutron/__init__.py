"""NXP eIQ Neutron: NeutronQuantizer -> NeutronPartitioner -> LiteRT -> converter. What configuration has to know.

docs/neutron.md tells what each option was found to do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lowerdeck.contracts.backends import Backend, BackendDeclaration, BuildContext, FlavorReport
from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.delegation.exclusion import Exclusion, is_operator_name
from lowerdeck.registry import import_paths, signatures


@dataclass(frozen=True, kw_only=True)
class Device:
    """The NPU."""

    target: Literal["imxrt700"]
    """NPU as NXP's converter names it. ExecuTorch's backend supports Neutron-C with N3 hardware, which is this one."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Partitioner and compile spec; docs/neutron.md tells what each option was found to do."""

    operators_not_to_delegate: list[str] = field(default_factory=list)
    """Operators of the edge program that stay on the CPU, by their whole name: [`aten::add`] or [`aten.add`] for all
    overloads, [`aten.add.Tensor`] for one. An operator that shares a quantize/dequantize cluster stays there too."""
    modules_not_to_delegate: list[str] = field(default_factory=list)
    """Globs on paths of modules that stay on the CPU, e.g. [head, `layer3.*`]. A module is matched with everything in
    it."""
    nodes_not_to_delegate: list[str] = field(default_factory=list)
    """Globs on names of nodes that stay on the CPU, e.g. [`aten_add_tensor_*`]; build/partition/plan.json has them."""
    use_neutron_for_format_conversion: bool = True
    """Let the NPU transpose between channels-first and channels-last, instead of operators on the CPU around it."""
    allow_no_op_partitions: bool = False
    """Delegate partitions that consist of operators without effect on the NPU; the converter may refuse them."""
    preserve_ops: list[str] = field(default_factory=lambda: ["aten::prelu", "aten::pad", "aten::hardswish"])
    """ATen operators that are converted whole where the backend supports their arguments, and not decomposed first."""
    check_op_support: str | None = None
    """A function of your own that has a say in this, by its import path `package.module:function`: called with each
    node (torch.fx.Node) of `preserve_ops`, it returns whether the node is kept whole."""
    quantized_inputs: bool = False
    """Whether the program takes integers, without a quantize node on the CPU at its start."""
    quantized_outputs: bool = False
    """Whether the program gives integers, without a dequantization on the CPU at its end."""
    fetch_constants_to_sram: bool = False
    """Prefetch weights from flash, for models that do not fit into SRAM."""
    dump_kernel_selection_code: bool = False
    """Have the converter write which of its kernels the program needs, to build firmware with these alone."""
    use_profiling: bool = False
    """Have the NPU measure its kernels, and keep an ETRecord, by which ExecuTorch's Inspector knows them."""
    extra_flags: dict[str, Any] = field(default_factory=dict)
    """Further options of the converter by the names of its Python interface, e.g. {useSequencer: true}: attributes of
    CompilationContext.compilationOpts. ExecuTorch's own `extra_flags` reach no converter; these do, and a flavor that
    lacks one refuses it. They stand in the compile spec of the `.pte`."""


CHECK = "target.options.check_op_support"
_OWN_OPTIONS = {
    "fetchConstantsToSRAM": "target.options.fetch_constants_to_sram",
    "dumpKernelSelectionCode": "target.options.dump_kernel_selection_code",
    "useProfiling": "target.options.use_profiling",
    "dumpAfterImport": "target.options.use_profiling, which sets it",
    "dumpAfterGenerate": "target.options.use_profiling, which sets it",
    "verbose": "target.options.use_profiling, which sets it",
}

_UNSUPPORTED_OPTIONS = {
    "config": "is `target.device.target` here",
    "system_config": "is accepted by ExecuTorch and read by nothing; leave it out",
    "neutron_converter_flavor": "has become an option group: choose the converter with `flavor` in params.yaml",
    "converter_flavor": "has become an option group: choose the converter with `flavor` in params.yaml",
    "intermediates_dir": "cannot be set: what it would hold is always kept, in build/convert/twins and build/convert/"
    "reports, and its path would stand in the `.pte`",
    "post_quantization_state_dict": "cannot be set: the quantized program's own is always passed",
    "custom_delegation_options": "has no level of its own here: set its fields, e.g. allow_no_op_partitions",
}


def exclusion(options: Options) -> Exclusion:
    """What the options keep off the NPU."""
    return Exclusion(
        operators_not_to_delegate=options.operators_not_to_delegate,
        modules_not_to_delegate=options.modules_not_to_delegate,
        nodes_not_to_delegate=options.nodes_not_to_delegate,
    )


def check(device: Device, options: Options) -> Iterator[tuple[str, str]]:
    """Every combination of values is possible; single ones may be malformed, or have an option of their own."""
    for option, message in exclusion(options).problems():
        yield f"options.{option}", message
    for name in options.preserve_ops:
        if not is_operator_name(name):
            yield (
                "options.preserve_ops",
                f"{name!r} is no operator: write `aten::hardswish` or `aten.hardswish.default`",
            )
    for flag, value in options.extra_flags.items():
        if not isinstance(value, (bool, int, float, str)):
            yield "options.extra_flags", f"{flag} has to be true, false, a number or a string"
        elif flag in _OWN_OPTIONS:
            yield "options.extra_flags", f"{flag} has an option of its own: {_OWN_OPTIONS[flag]}"
        elif not flag.isidentifier():
            yield "options.extra_flags", f"{flag!r} is no name of an attribute, e.g. useSequencer"


def check_build(device: Device, options: Options, build: BuildContext) -> Iterator[tuple[str, str]]:
    """Which code may be named depends on the plugins of the build."""
    if options.check_op_support is None:
        return
    try:
        import_paths.split_import_path(options.check_op_support, CHECK, "plugins.my_checks:keeps_whole")
        import_paths.check_permitted(options.check_op_support, CHECK, __name__, build.plugins)
        accepted = import_paths.parameters(options.check_op_support, CHECK)
    except ConfigurationError as error:
        yield CHECK, str(error).removeprefix(CHECK).removeprefix(": ").strip()
        return
    if accepted is not None and len(accepted.required) != 1:
        yield CHECK, f"requires {', '.join(accepted.required) or 'nothing'}, and is called with a node alone"


def files(device: Device, options: Options) -> Iterator[Path]:
    """The source file of the check, where there is one."""
    if options.check_op_support is not None:
        source = signatures.source_file(options.check_op_support.partition(":")[0], CHECK)
        if source is not None:
            yield source


@dataclass(frozen=True, kw_only=True)
class FlavorOptions:
    """Which converter package is called, and in which Python environment; see docs/flavors.md."""

    module: str | None = None
    """Package to import, e.g. `neutron_converter_SDK_25_09`; null for `eiq_neutron_sdk` with that converter."""
    python: str | None = None
    """Interpreter of the environment that has the package, e.g. `~/envs/sdk-3.1.3/bin/python`; relative paths begin at
    the project. Null for this environment."""
    sys_path: list[str] = field(default_factory=list)
    """Folders that the interpreter searches for modules first, for a package that is unpacked and not installed."""


def check_flavor(converter: str, options: FlavorOptions) -> Iterator[tuple[str, str]]:
    """What cannot be reached, or would be ignored."""
    if converter == "reference":
        for name in ("module", "python", "sys_path"):
            if getattr(options, name):
                yield f"options.{name}", "the converter `reference` is a part of this project and runs with it alone"
        return
    if converter == "neutron_converter" and options.module is None:
        yield "options.module", "name the package of the release, e.g. neutron_converter_SDK_25_09"
    if options.module is not None and not all(part.isidentifier() for part in options.module.split(".")):
        yield "options.module", "not a name that Python can import, e.g. neutron_converter_SDK_25_09"
    if options.python is not None and (reason := interpreter_problem(options.python)):
        yield "options.python", reason
    for folder in options.sys_path:
        if not expand_path(folder).is_dir():
            yield "options.sys_path", f"there is no folder {expand_path(folder)}"


def expand_path(path: str) -> Path:
    """`path` with `~` expanded, from the current folder (the project's) where relative.

    Links stay: a virtual environment's interpreter is one, and knows its environment by the path it is started by.
    """
    return Path.cwd() / Path(path).expanduser()


def interpreter_problem(python: str) -> str | None:
    """Why `python` cannot be started, None where it looks as if it can."""
    path = expand_path(python)
    if path.is_dir():
        return f"{path} is a folder; name the interpreter in it, {Path(python) / 'bin' / 'python'}"
    if not path.is_file():
        return f"there is no file {path}; name the interpreter of the environment that has the converter"
    return None if os.access(path, os.X_OK) else f"{path} is no program that you may execute"


def create(**arguments: Any) -> Backend:
    """The backend itself, which imports ExecuTorch."""
    from lowerdeck.backends.neutron.backend import Neutron

    return Neutron(**arguments)


def probe_flavor(**flavor: Any) -> FlavorReport:
    """Ask the converter; see contracts.backends.BackendDeclaration."""
    from lowerdeck.backends.neutron.flavor import probe

    return probe(**flavor)


DECLARATION = BackendDeclaration(
    device=Device,
    options=Options,
    # Convolutions are quantized per channel and linear layers per tensor; the quantizer offers no choice.
    schemes={"int8": ("backend_default",)},
    trainable=("int8",),
    converters=("reference", "eiq_neutron_sdk", "neutron_converter"),
    flavor_options=FlavorOptions,
    check_flavor=check_flavor,
    probe_flavor=probe_flavor,
    check=check,
    check_build=check_build,
    files=files,
    create=create,
    delegation_options=(
        "operators_not_to_delegate",
        "modules_not_to_delegate",
        "nodes_not_to_delegate",
        "use_neutron_for_format_conversion",
        "allow_no_op_partitions",
        "quantized_inputs",
        "quantized_outputs",
        "fetch_constants_to_sram",
        "dump_kernel_selection_code",
        "use_profiling",
        "extra_flags",
    ),
    unsupported_options=_UNSUPPORTED_OPTIONS,
)
