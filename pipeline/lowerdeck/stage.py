"""What every stage entry does around its work: one process, one stage, errors as messages.

Stage entries cannot be imported, so that no logic can hide in them; `run` is their last line. Nothing heavy is imported
at the top: a stage may hand itself over to a process that has everything imported (preload.py).
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lowerdeck import preload

if TYPE_CHECKING:
    from torch.nn import Module
    from torchao.quantization.pt2e.quantizer import Quantizer

    from lowerdeck.config.schema import BuildConfig, Config
    from lowerdeck.contracts import Backend, Dataset, QuantizationScheme
    from lowerdeck.firmware import Placement, Target
    from lowerdeck.quantization.training import Training

Section = TypeVar("Section")

# Variables that have to stand before Python or PyTorch start: the order of sets, and the instruction set by which
# oneDNN chooses its kernels, would otherwise vary between processes and machines, and with them ranges and programs.
_FIXED_ENVIRONMENT = {"PYTHONHASHSEED": "0", "ONEDNN_MAX_CPU_ISA": "AVX2"}

_VERBOSE = "LOWERDECK_VERBOSE"
"""Set to 1 it shows what libraries warn of."""


def run(
    module: str,
    main: Callable[[], None],
    *,
    preloaded_within_s: float | None = None,
    libraries: preload.Libraries = preload.LOWERING,
    starts: preload.Libraries | None = None,
) -> None:
    """Run `main` as the stage of this process; raises ImportError where the entry is imported.

    The process ends with 0, with 1 and a message where the user can mend something, with 130 after Ctrl-C, and with a
    traceback on an error of the project itself.

    Args:
        module: `__name__` of the entry.
        main: The stage.
        preloaded_within_s: Run in the preloading server if it answers within so many seconds; None: run here.
        libraries: What that server has to have.
        starts: What stages to come need: a server of these is started, which imports them while this stage runs.
    """
    if module != "__main__":
        raise ImportError(f"{module} is a stage entry and cannot be imported; run it with `python -m`")
    name = f"stages.{Path(sys.argv[0]).stem}"
    try:
        _die_with_parent()
        _fix_environment(name)
        if starts is not None:
            preload.start(starts)
        code = None if preloaded_within_s is None else preload.run(name, preloaded_within_s, libraries)
        sys.exit(_main(name, main) if code is None else code)
    except KeyboardInterrupt:
        sys.exit(130)


def _main(name: str, main: Callable[[], None]) -> int:
    from lowerdeck.contracts import LowerdeckError

    quiet_libraries()
    try:
        main()
    except LowerdeckError as error:
        print(f"\n{name.removeprefix('stages.')}: {error}", file=sys.stderr)
        return 1
    return 0


def section(schema: type[Section]) -> Section:
    """The section of the resolved configuration that `schema` describes."""
    from lowerdeck import artifacts
    from lowerdeck.config import load

    return load.read_section(artifacts.CONFIG, schema)


def whole_config() -> Config:
    """The whole resolved configuration."""
    from lowerdeck import artifacts
    from lowerdeck.config import load

    return load.read_config(artifacts.CONFIG)


def fix_arithmetic() -> BuildConfig:
    """Make PyTorch's results depend on nothing but its inputs: sums are ordered by the number of threads."""
    import torch

    from lowerdeck.config.schema import BuildConfig

    build = section(BuildConfig)

    torch.set_num_threads(build.num_threads)
    torch.manual_seed(build.seed)
    return build


def quantizing_backend() -> Backend:
    """The backend of the chosen target, for its quantizer: depends on the device and not on compiler options."""
    from lowerdeck import backends
    from lowerdeck.config.schema import TargetConfig

    target = section(TargetConfig)
    return backends.create(target.backend, device=target.device)


def model() -> Module:
    """The chosen model with its weights, in eval mode."""
    from lowerdeck import models
    from lowerdeck.config.schema import ModelConfig

    config = section(ModelConfig)
    source = models.source(config.source)
    return source.build(source.Options(**config.options), config.weights)


def scheme() -> QuantizationScheme:
    """The chosen quantization."""
    from lowerdeck.config.quantization import quantization_scheme
    from lowerdeck.config.schema import QuantizationConfig

    return quantization_scheme(section(QuantizationConfig))


def quantizer() -> Quantizer | None:
    """What annotates the model for the chosen quantization on the chosen target, None where nothing is annotated."""
    from lowerdeck.quantization.annotation import scheme_quantizer

    return scheme_quantizer(quantizing_backend(), scheme())


def training(dataset: Dataset) -> Training | None:
    """The training that the chosen quantization wants, None where it wants none.

    Raises:
        SampleOverlapError: a sample would serve training and evaluation.
    """
    import dataclasses

    from lowerdeck import artifacts
    from lowerdeck.config.schema import QuantizationConfig
    from lowerdeck.datasets.choice import training_split
    from lowerdeck.datasets.overlap import check_disjoint

    config = section(QuantizationConfig).training
    if config is None:
        return None
    from lowerdeck.quantization.training import Recipe, Training

    split = training_split(dataset)
    check_disjoint(split, dataset.evaluation, "training")
    checkpoints = artifacts.TrainingCheckpoints(training_ingredients())
    return Training(recipe=Recipe(**dataclasses.asdict(config)), split=split, checkpoints=checkpoints)


def training_ingredients() -> str:
    """SHA-256 over all that a training depends on: only a checkpoint of the same may be taken up."""
    import dataclasses
    import hashlib
    import importlib.metadata
    import json

    from lowerdeck import artifacts
    from lowerdeck.config.schema import BuildConfig, DatasetConfig, ModelConfig, QuantizationConfig, TargetConfig

    target, code = section(TargetConfig), Path(__file__).parent
    sections = (section(BuildConfig), section(DatasetConfig), section(ModelConfig), section(QuantizationConfig))
    ingredients = [
        artifacts.sha256(artifacts.EXPORTED),
        [dataclasses.asdict(chosen) for chosen in sections],
        [target.backend, target.device],
        [importlib.metadata.version(name) for name in ("torch", "executorch", "torchao")],
        [artifacts.sha256(path) for path in sorted((code / "quantization").glob("*.py"))],
    ]
    return hashlib.sha256(json.dumps(ingredients, sort_keys=True).encode()).hexdigest()


def lowering_backend() -> Backend:
    """The backend of the chosen target with its options and its converter flavor.

    Raises:
        LowerdeckError: the flavor is of another version than configured, or cannot say its version.
    """
    from lowerdeck import backends
    from lowerdeck.config.schema import FlavorConfig, TargetConfig

    target, flavor = section(TargetConfig), section(FlavorConfig)
    backend = backends.create(
        target.backend,
        device=target.device,
        options=target.options,
        flavor=flavor.name,
        converter_name=flavor.converter,
        flavor_options=flavor.options,
        timeout_s=flavor.timeout_s,
    )
    if flavor.version is not None:
        backend.converter().held_to(flavor.version)
    return backend


def edge_ingredients() -> tuple[str, dict[str, Any]]:
    """What the edge program is made of, but for what the partitioner keeps whole.

    Returns:
        SHA-256 over the quantized program, the code, and the configuration without options that have no other say in
        it; and those options that decide what is kept whole.
    """
    import dataclasses
    import hashlib
    import importlib.metadata
    import json

    from lowerdeck import artifacts, backends
    from lowerdeck.config.schema import FlavorConfig, TargetConfig

    target = section(TargetConfig)
    declaration = backends.source(target.backend)
    options = {name: value for name, value in target.options.items() if name not in declaration.delegation_options}
    code = Path(__file__).parent
    files = sorted(code.rglob("*.py"))
    ingredients = [
        artifacts.sha256(artifacts.QUANTIZED),
        dataclasses.asdict(dataclasses.replace(target, options=options)),
        dataclasses.asdict(section(FlavorConfig)),
        [importlib.metadata.version(name) for name in ("torch", "executorch", "torchao")],
        [[file.relative_to(code).as_posix(), artifacts.sha256(file)] for file in files],
    ]
    digest = hashlib.sha256(json.dumps(ingredients, sort_keys=True).encode()).hexdigest()
    return digest, {name: target.options[name] for name in declaration.decomposition_options}


def dataset(seed: int) -> Dataset:
    """The chosen dataset, its samples shaped for the chosen model."""
    from lowerdeck import datasets
    from lowerdeck.config.schema import DatasetConfig, ModelConfig

    config = section(DatasetConfig)
    source = datasets.source(config.source)
    return source.load(source.Options(**config.options), section(ModelConfig).input_shapes, seed)


def firmware_target() -> Target:
    """What firmware is told about the chosen target."""
    from lowerdeck.config.schema import TargetConfig
    from lowerdeck.firmware import Target

    target = section(TargetConfig)
    return Target(name=target.name, backend=target.backend, device=target.device, options=target.options)


def placement() -> Placement:
    """Where the array of the C header goes."""
    from lowerdeck.config.schema import FirmwareConfig
    from lowerdeck.firmware import Placement

    config = section(FirmwareConfig)
    return Placement(array_name=config.array_name, alignment_bytes=config.alignment_bytes, section=config.section)


def gates() -> dict[str, float | None]:
    """The chosen gates: bounds by name, None where a gate is off."""
    from lowerdeck.config.schema import GatesConfig
    from lowerdeck.evaluation.gates import bounds

    return bounds(section(GatesConfig))


def _die_with_parent() -> None:
    """Let the kernel end this process when DVC is killed: a stage left over would write over later work."""
    if sys.platform == "linux":
        parent_death_signal = 1  # PR_SET_PDEATHSIG of linux/prctl.h
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGTERM)


def fixed_environment() -> dict[str, str]:
    """The variables that have to stand before a stage starts."""
    fixed = dict(_FIXED_ENVIRONMENT)
    if not os.environ.get(_VERBOSE):
        fixed["TORCH_LOGS"] = os.environ.get("TORCH_LOGS", "-all")
    return fixed


def _fix_environment(module: str) -> None:
    """Start this process again with the variables that cannot be set later, unless they are."""
    fixed = fixed_environment()
    if any(os.environ.get(key) != value for key, value in fixed.items()):
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], os.environ | fixed)  # noqa: S606


def quiet_libraries() -> None:
    """Keep deprecation notes of libraries off the terminal."""
    if os.environ.get(_VERBOSE):
        return
    os.environ.setdefault("TORCH_LOGS", "-all")  # heeded where torch is not imported yet
    warnings.filterwarnings("ignore")
    logging.basicConfig()
    for handler in logging.getLogger().handlers:
        handler.setLevel(logging.ERROR)
