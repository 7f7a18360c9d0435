"""What every stage entry does around its work: one process, one stage, errors as messages.

Stage entries cannot be imported, so that no logic can hide in them; `run` is their last line.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict
from typing import TypeVar

from pipeline import artifacts, backends, datasets
from pipeline.config import load
from pipeline.config.schema import (
    BuildConfig,
    Config,
    DatasetConfig,
    FlavorConfig,
    GatesConfig,
    ModelConfig,
    QuantizationConfig,
    TargetConfig,
)
from pipeline.contracts import Backend, Dataset, LowerdeckError, QuantizationScheme

Section = TypeVar("Section")


def run(module: str, main: Callable[[], None]) -> None:
    """Run `main` as the stage of this process; raises ImportError where the entry is imported.

    The process ends with 0, with 1 and a message where the user can mend something, with 130 after Ctrl-C, and with a
    traceback on an error of the project itself.
    """
    if module != "__main__":
        raise ImportError(f"{module} is a stage entry and cannot be imported; run it with `python -m`")
    _die_with_parent()
    _quiet_libraries()
    try:
        main()
    except LowerdeckError as error:
        name = os.path.splitext(os.path.basename(sys.argv[0]))[0]
        print(f"\n{name}: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def section(schema: type[Section]) -> Section:
    """The section of the resolved configuration that `schema` describes."""
    return load.read_section(artifacts.CONFIG, schema)


def whole_config() -> Config:
    """The whole resolved configuration."""
    return load.read_config(artifacts.CONFIG)


def fix_arithmetic() -> BuildConfig:
    """Make PyTorch's results depend on nothing but its inputs: number of threads, seed, instruction set.

    Threads change the order of sums, oneDNN chooses kernels by instruction set: both show in observed ranges.
    """
    build = section(BuildConfig)
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")
    import torch

    torch.set_num_threads(build.num_threads)
    torch.manual_seed(build.seed)
    return build


def quantizing_backend() -> Backend:
    """The backend of the chosen target, for its quantizer: depends on the device and not on compiler options."""
    target = section(TargetConfig)
    return backends.create(target.backend, device=target.device)


def scheme() -> QuantizationScheme:
    """The chosen quantization."""
    config = section(QuantizationConfig)
    return QuantizationScheme(name=config.scheme, weight_granularity=config.weight_granularity)


def lowering_backend() -> Backend:
    """The backend of the chosen target with its options and its converter flavor."""
    target, flavor = section(TargetConfig), section(FlavorConfig)
    return backends.create(
        target.backend,
        device=target.device,
        options=target.options,
        flavor=flavor.name,
        converter_name=flavor.converter,
        timeout_s=flavor.timeout_s,
    )


def dataset(seed: int) -> Dataset:
    """The chosen dataset, its samples shaped for the chosen model."""
    config = section(DatasetConfig)
    source = datasets.source(config.source)
    return source.load(source.Options(**config.options), section(ModelConfig).input_shapes, seed)


def gates() -> dict[str, float | None]:
    """The chosen gates: bounds by name, None where a gate is off."""
    config = asdict(section(GatesConfig))
    del config["name"]
    return config


def _die_with_parent() -> None:
    """Let the kernel end this process when DVC is killed: a stage left over would write over later work."""
    if sys.platform == "linux":
        parent_death_signal = 1  # PR_SET_PDEATHSIG of linux/prctl.h
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGTERM)


def _quiet_libraries() -> None:
    """Keep deprecation notes of libraries off the terminal; LOWERDECK_VERBOSE=1 shows them."""
    if os.environ.get("LOWERDECK_VERBOSE"):
        return
    warnings.filterwarnings("ignore")
    logging.basicConfig()
    for handler in logging.getLogger().handlers:
        handler.setLevel(logging.ERROR)
    os.environ.setdefault("TORCH_LOGS", "-all")
