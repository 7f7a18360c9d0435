"""Flags of Vela that a configuration may add, and why the others are refused.

The tables hold every flag of Vela 5.1.0. A flag that Vela takes and then ignores, because TOSA graphs are compiled by
its C++ core, would look like a choice and be none. What each flag does was measured by compiling with and without it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lowerdeck.registry.components import did_you_mean


@dataclass(frozen=True)
class _Flag:
    """What may follow a flag's name."""

    wanted: str = ""
    """Its values in words; empty for a flag without a value."""
    accepts: Callable[[str], bool] | None = None
    families: tuple[str, ...] = ("U55", "U65", "U85")
    """NPUs that it makes a difference for."""


def _one_of(*values: str) -> _Flag:
    return _Flag(" or ".join(values), lambda given: given in values)


def _is_size(given: str) -> bool:
    return given.isdecimal() and 0 < int(given) < 2**32


def _is_alignment(given: str) -> bool:
    return given.isdecimal() and int(given) >= 16 and int(given) & (int(given) - 1) == 0


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
    # Add to the reports that are kept beside the program.
    "enable-debug-db": _Flag(),
    "show-cpu-operations": _Flag(),
    "verbose-all": _Flag(),
    "verbose-allocation": _Flag(),
    "verbose-config": _Flag(),
    "verbose-cycle-estimate": _Flag(),
    "verbose-graph": _Flag(),
    "verbose-high-level-command-stream": _Flag(),
    "verbose-performance": _Flag(),
    "verbose-quantization": _Flag(),
    "verbose-register-command-stream": _Flag(),
    "verbose-schedule": _Flag(),
    "verbose-weights": _Flag(),
}
_OWN_KEYS = {
    "accelerator-config": "target.device.accelerator",
    "config": "target.options.vela_config",
    "memory-mode": "target.options.memory_mode",
    "system-config": "target.options.system_config",
}
_FIXED = ("output-dir", "output-format")
_IGNORED = (
    "debug-force-regor",
    "experimental-softmax-int16-neg-exp-range",
    "force-symmetric-int-weights",
    "hillclimb-max-iterations",
    "ignore-ops",
    "max-block-dependency",
    "recursion-limit",
    "show-subgraph-io-summary",
    "timing",
    "verbose-operators",
    "verbose-packing",
    "verbose-progress",
    "verbose-tensor-format",
    "verbose-tensor-purpose",
)
_WITHOUT_COMPILING = (
    "api-version",
    "help",
    "list-config-files",
    "list-configs",
    "supported-ops-report",
    "version",
)
_TFLITE_ONLY = ("debug-force-legacy-core",)
KNOWN = frozenset((*_PERMITTED, *_OWN_KEYS, *_FIXED, *_IGNORED, *_WITHOUT_COMPILING, *_TFLITE_ONLY))
"""Names of all flags that a reason is known for, without their dashes."""


def problems(flags: Sequence[str], family: str) -> Iterator[tuple[int, str]]:
    """What is wrong with `flags` for an NPU of `family`: (position, message)."""
    names = [_name(flag) for flag in flags]
    for index, (flag, name) in enumerate(zip(flags, names, strict=True)):
        problem = _problem(flag, name, family)
        if problem is None and name in names[:index]:
            problem = f"--{name} is given twice; Vela would take the last one"
        if problem is None and name == "separate-io-regions" and "--cop-format=COP2" not in flags:
            problem = "needs --cop-format=COP2 beside it"
        if problem is not None:
            yield index, problem


def _name(flag: str) -> str:
    match = re.match(r"--([a-z0-9-]+)", flag)
    return match[1] if match else ""


def _problem(flag: str, name: str, family: str) -> str | None:
    if not re.fullmatch(r"--[a-z0-9-]+(=\S+)?", flag):
        return "is no flag; write --name or --name=value in one piece, without spaces"
    if name in _OWN_KEYS:
        return f"Vela's --{name} is set by {_OWN_KEYS[name]}"
    if name in _FIXED:
        return f"Vela's --{name} is set by the pipeline, which has to find what Vela writes"
    if name in _IGNORED:
        return f"Vela takes --{name} and ignores it where it compiles TOSA graphs, as here; leave it out"
    if name in _WITHOUT_COMPILING:
        return f"with --{name} Vela would end without compiling"
    if name in _TFLITE_ONLY:
        return f"Vela has --{name} for TFLite files only"
    if name not in _PERMITTED:
        return f"Vela has no --{name}.{did_you_mean(name, sorted(_PERMITTED))}"
    return _value_problem(flag, name, family)


def _value_problem(flag: str, name: str, family: str) -> str | None:
    permitted, (_, equals, value) = _PERMITTED[name], flag.partition("=")
    if family not in permitted.families:
        return f"--{name} makes no difference on an Ethos-{family}; Ethos-{' and '.join(permitted.families)} have it"
    if permitted.accepts is None:
        return f"--{name} takes no value" if equals else None
    return None if equals and permitted.accepts(value) else f"--{name}= has to be {permitted.wanted}"
