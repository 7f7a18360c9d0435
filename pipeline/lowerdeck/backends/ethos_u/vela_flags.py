"""Flags of Vela that a configuration may add, and why the others are refused.

The tables contain every flag of Vela 5.1.0. Vela accepts some flags and ignores them, because its C++ core compiles
TOSA graphs; these are refused. The effect of each flag was measured by compiling with and without it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lowerdeck.registry.components import did_you_mean


@dataclass(frozen=True)
class _Flag:
    """The values that a flag accepts."""

    values: str = ""
    """Description of the values; empty for a flag without a value."""
    accepts: Callable[[str], bool] | None = None
    families: tuple[str, ...] = ("U55", "U65", "U85")
    """NPUs on which it has an effect."""


def _one_of(*values: str) -> _Flag:
    return _Flag(" or ".join(values), lambda given: given in values)


def _is_size(given: str) -> bool:
    return given.isdecimal() and 0 < int(given) < 2**32


def _is_alignment(given: str) -> bool:
    return given.isdecimal() and int(given) >= 16 and int(given) & (int(given) - 1) == 0


_VERBOSE = """
    verbose-all verbose-allocation verbose-config verbose-cycle-estimate verbose-graph verbose-high-level-command-stream
    verbose-performance verbose-quantization verbose-register-command-stream verbose-schedule verbose-weights
"""
_PERMITTED = {
    # Change the command stream.
    "optimise": _one_of("Performance", "Size"),
    "arena-cache-size": _Flag("a number of bytes, at least 1", _is_size),
    "cpu-tensor-alignment": _Flag("a power of two, at least 16", _is_alignment),
    "tensor-allocator": _one_of("HillClimb", "LinearAlloc"),
    "cop-format": _one_of("COP1", "COP2"),
    "separate-io-regions": _Flag(),
    "disable-buffering": _Flag(),
    "disable-cascading": _Flag(),
    "disable-chaining": _Flag(families=("U85",)),
    "disable-fwd": _Flag(families=("U85",)),
    "disable-ifm-reuse": _Flag(families=("U55", "U65")),
    # Add to the stored reports.
    "enable-debug-db": _Flag(),
    "show-cpu-operations": _Flag(),
    **dict.fromkeys(_VERBOSE.split(), _Flag()),
}
_OWN_KEYS = {
    "accelerator-config": "target.device.accelerator",
    "config": "target.options.vela_config",
    "memory-mode": "target.options.memory_mode",
    "system-config": "target.options.system_config",
}
_FIXED = ("output-dir", "output-format")
_IGNORED_NAMES = """
    debug-force-regor experimental-softmax-int16-neg-exp-range force-symmetric-int-weights hillclimb-max-iterations
    ignore-ops max-block-dependency recursion-limit show-subgraph-io-summary timing verbose-operators verbose-packing
    verbose-progress verbose-tensor-format verbose-tensor-purpose
"""
_IGNORED = tuple(_IGNORED_NAMES.split())
_WITHOUT_COMPILING = ("api-version", "help", "list-config-files", "list-configs", "supported-ops-report", "version")
_TFLITE_ONLY = ("debug-force-legacy-core",)
KNOWN = frozenset((*_PERMITTED, *_OWN_KEYS, *_FIXED, *_IGNORED, *_WITHOUT_COMPILING, *_TFLITE_ONLY))
"""Names of all known flags, without their dashes."""


def problems(flags: Sequence[str], family: str) -> Iterator[tuple[int, str]]:
    """Yield (position, problem) for invalid `flags` of an NPU of `family`."""
    names = [_name(flag) for flag in flags]
    for index, (flag, name) in enumerate(zip(flags, names, strict=True)):
        problem = _problem(flag, name, family)
        if problem is None and name in names[:index]:
            problem = f"--{name} is given twice; Vela would take the last one"
        if problem is None and name == "separate-io-regions" and "--cop-format=COP2" not in flags:
            problem = "also needs --cop-format=COP2"
        if problem is not None:
            yield index, problem


def _name(flag: str) -> str:
    match = re.match(r"--([a-z0-9-]+)", flag)
    return match[1] if match else ""


def _problem(flag: str, name: str, family: str) -> str | None:
    if not re.fullmatch(r"--[a-z0-9-]+(=\S+)?", flag):
        return "is not a flag; write --name or --name=value without spaces"
    if name in _OWN_KEYS:
        return f"Vela's --{name} is set by {_OWN_KEYS[name]}"
    if name in _FIXED:
        return f"Vela's --{name} is set by the pipeline, which has to find Vela's output"
    if name in _IGNORED:
        return f"Vela accepts --{name} but ignores it for TOSA graphs; leave it out"
    if name in _WITHOUT_COMPILING:
        return f"with --{name} Vela would exit without compiling"
    if name in _TFLITE_ONLY:
        return f"Vela has --{name} for TFLite files only"
    if name not in _PERMITTED:
        return f"Vela has no --{name}.{did_you_mean(name, sorted(_PERMITTED))}"
    return _value_problem(flag, name, family)


def _value_problem(flag: str, name: str, family: str) -> str | None:
    permitted, (_, equals, value) = _PERMITTED[name], flag.partition("=")
    if family not in permitted.families:
        return f"--{name} has no effect on an Ethos-{family}, only on Ethos-{' and '.join(permitted.families)}"
    if permitted.accepts is None:
        return f"--{name} takes no value" if equals else None
    return None if equals and permitted.accepts(value) else f"--{name}= has to be {permitted.values}"
