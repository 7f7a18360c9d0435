"""The systems and memory modes of a vela.ini, Vela's own or yours.

Vela reports problems of such a file only when it compiles, at the end of a build; this module finds them earlier.
"""

from __future__ import annotations

import configparser
import hashlib
import importlib.util
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.formats.regular_files import check_regular

STOCK = "Arm/vela.ini"
"""Vela's name for the file that comes with it."""

_SYSTEM, _MODE = "System_Config.", "Memory_Mode."
_AREAS = {"const_mem_area": ("Dram", "OnChipFlash", "OffChipFlash"), "arena_mem_area": ("Sram", "Dram")}
"""Permitted memories for weights and activations, from ethosu/vela/architecture_features.py; the cache is always in
Sram."""


@dataclass(frozen=True)
class VelaConfig:
    """The sections of one file, with inheritance."""

    name: str
    """Name of the file in messages."""
    content: bytes
    sections: configparser.ConfigParser

    @property
    def systems(self) -> tuple[str, ...]:
        """Permitted values of `system_config`."""
        return tuple(name.removeprefix(_SYSTEM) for name in self.sections.sections() if name.startswith(_SYSTEM))

    @property
    def memory_modes(self) -> tuple[str, ...]:
        """Permitted values of `memory_mode`."""
        return tuple(name.removeprefix(_MODE) for name in self.sections.sections() if name.startswith(_MODE))

    @property
    def flag(self) -> str:
        """Value of Vela's `--config`; the `.pte` records it, so it identifies the content without a local path."""
        return STOCK if self.name == STOCK else f"vela_{hashlib.sha256(self.content).hexdigest()[:16]}.ini"

    def core_clock_hz(self, system: str) -> float:
        """Return the clock of the NPU in `system`."""
        return float(self._value(_SYSTEM + system, "core_clock") or "nan")

    def system_problem(self, system: str) -> str | None:
        """Return what Vela would reject in the section of `system`, one of `systems`."""
        section = _SYSTEM + system
        if problem := self._inheritance_problem(section):
            return problem
        try:
            clock = self.core_clock_hz(system)
        except ValueError:
            clock = math.nan
        if not (math.isfinite(clock) and clock > 0):
            return f"[{section}] in {self.name} must set core_clock to a number of Hz above 0, e.g. core_clock=500e6"
        for port in ("axi0_port", "axi1_port"):
            memory = self._value(section, port)
            if memory not in ("Sram", *_AREAS["const_mem_area"]):
                return f"[{section}] in {self.name} must set {port} to Sram, Dram, OnChipFlash or OffChipFlash"
            if self._value(section, f"{memory}_clock_scale") is None:
                return f"[{section}] in {self.name} must set {memory}_clock_scale, as {memory} is its {port}"
        return None

    def mode_problem(self, mode: str, system: str) -> str | None:
        """Return what Vela would reject in `mode`, one of `memory_modes`, with a valid `system`."""
        section = _MODE + mode
        if problem := self._inheritance_problem(section):
            return problem
        areas = {area: self._area(mode, system, area) for area in (*_AREAS, "cache_mem_area")}
        for area, memory in areas.items():
            if memory is None:
                return f"[{section}] in {self.name} must set {area} to Axi0 or Axi1"
        if areas["cache_mem_area"] != "Sram":
            return f"puts the cache into {areas['cache_mem_area']} of {system}; it has to be Sram"
        if areas["arena_mem_area"] not in _AREAS["arena_mem_area"]:
            return f"puts activations into {areas['arena_mem_area']} of {system}, which cannot be written"
        in_sram_alone = len({self._value(section, area) for area in areas}) == 1
        if areas["const_mem_area"] not in _AREAS["const_mem_area"] and not in_sram_alone:
            return f"puts weights into {areas['const_mem_area']} of {system}; they have to be in Dram or Flash"
        return None

    def writes_second_port(self, mode: str) -> bool:
        """Whether activations go through the NPU's second port."""
        return self._value(_MODE + mode, "arena_mem_area") == "Axi1"

    def _area(self, mode: str, system: str, area: str) -> str | None:
        port = self._value(_MODE + mode, area)
        return self._value(_SYSTEM + system, f"{port.lower()}_port") if port in ("Axi0", "Axi1") else None

    def _inheritance_problem(self, section: str) -> str | None:
        seen = [section]
        while parent := self.sections.get(seen[-1], "inherit", fallback=None):
            if parent in seen or not self.sections.has_section(parent):
                why = "inherits from itself" if parent in seen else f"inherits from [{parent}], which is not there"
                return f"[{section}] in {self.name} {why}"
            seen.append(parent)
        return None

    def _value(self, section: str | None, key: str) -> str | None:
        """A section's own or inherited value."""
        while section is not None:
            if self.sections.has_option(section, key):
                return self.sections.get(section, key)
            section = self.sections.get(section, "inherit", fallback=None)
        return None


def read(path: str | None) -> VelaConfig:
    """Read the file at `path`, or the one that comes with Vela.

    Raises:
        ConfigurationError: there is no such file, it is not an ini file, or Vela is not installed.
    """
    where = _stock_file() if path is None else Path(path)
    sections = configparser.ConfigParser()
    try:
        content = check_regular(where).read_bytes()
        sections.read_string(content.decode())
        for section in sections.values():
            dict(section)  # Vela, too, takes % for the start of another key's name
    except OSError as error:
        raise ConfigurationError(f"target.options.vela_config: {path} cannot be read: {error.strerror}") from None
    except (configparser.Error, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigurationError(f"target.options.vela_config: {path} is not an ini file: {reason}") from None
    return VelaConfig(STOCK if path is None else path, content, sections)


def problems(config: VelaConfig, system: str, mode: str, family: str) -> Iterator[tuple[str, str]]:
    """Yield (option, problem) for choices that Vela would reject late, or accept although the NPU cannot do them.

    Args:
        config: The file with the sections.
        system: Name of a System_Config section.
        mode: Name of a Memory_Mode section.
        family: `U55`, `U65` or `U85`.
    """
    fitting = [name for name in config.systems if _family(name) in (family, None)]
    if system not in config.systems:
        yield "system_config", f"{config.name} has no [{_SYSTEM}{system}]; choose one of {', '.join(fitting)}"
    elif system not in fitting:
        yield "system_config", f"is not for an Ethos-{family}; choose one of {', '.join(fitting)}"
    elif problem := config.system_problem(system):
        yield "system_config", problem
    elif mode not in config.memory_modes:
        usable = _usable_modes(config, system, family)
        yield "memory_mode", f"{config.name} has no [{_MODE}{mode}]; choose one of {usable}"
    elif family == "U55" and config.writes_second_port(mode):
        message = "an Ethos-U55 only reads through its second port, and this mode puts activations there"
        yield "memory_mode", f"{message}; choose one of {_usable_modes(config, system, family)}"
    elif problem := config.mode_problem(mode, system):
        yield "memory_mode", f"{problem}; choose one of {_usable_modes(config, system, family)}"


def _usable_modes(config: VelaConfig, system: str, family: str) -> str:
    fine = [
        mode
        for mode in config.memory_modes
        if config.mode_problem(mode, system) is None and not (family == "U55" and config.writes_second_port(mode))
    ]
    return ", ".join(fine) or "none, as no section fits"


def _family(system: str) -> str | None:
    """The NPU in Arm's names of systems; None for other names."""
    return next((family for family in ("U55", "U65", "U85") if system.startswith(f"Ethos_{family}_")), None)


def _stock_file() -> Path:
    vela = importlib.util.find_spec("ethosu.vela") if importlib.util.find_spec("ethosu") else None
    if vela is None or vela.origin is None:
        raise ConfigurationError("target: Vela is not installed; `pip install 'lowerdeck[ethos-u]'` installs it")
    return Path(vela.origin).parents[1] / "config_files" / STOCK
