"""Tries a change on the build in build/: makes it, partitions again, and returns the plan that comes out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.execution.resolved_config import section

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram
    from torch.nn import Module

    from lowerdeck.config.schema import ModelConfig
    from lowerdeck.contracts.plan import DelegationPlan
    from lowerdeck.explain.causes import Change

_MAX_SAMPLES = 4
"""Samples to calibrate with: which nodes are delegated does not depend on ranges."""


def try_change(change: Change) -> DelegationPlan:
    """The plan of the configured model with `change` made, which nothing of build/ is replaced by.

    Raises:
        LowerdeckError: the tool cannot make the change, or the changed model cannot be exported or partitioned.
    """
    from lowerdeck.execution.arithmetic import fix_arithmetic
    from lowerdeck.execution.chosen.model import chosen_model

    if not change.can_be_tried:
        raise LowerdeckError(f"{change.text}: this changes the model by hand")
    build = fix_arithmetic()
    model = chosen_model()
    if change.swap is not None:
        swap_modules(model, *change.swap)
    return _partitioned(model, changed_options(change), changed_shapes(change), build.seed)


def swap_modules(model: Module, old: str, new: str) -> int:
    """Replace torch.nn.`old` in `model` by torch.nn.`new`, in place; returns in how many places it was.

    Raises:
        LowerdeckError: there is none, because the model calls a function.
    """
    import torch

    was, becomes = getattr(torch.nn, old), getattr(torch.nn, new)
    # A module that is used in several places has a name for each.
    found = [name for name, module in model.named_modules(remove_duplicate=False) if type(module) is was]
    for name in found:
        model.set_submodule(name, becomes().train(model.training))
    if not found:
        raise LowerdeckError(f"the model has no module nn.{old}: it calls the function, which only you can replace")
    return len(found)


def changed_options(change: Change) -> dict[str, Any]:
    """The target's options with the change made.

    Raises:
        LowerdeckError: no list among the options has the value to take out.
    """
    from lowerdeck.config.schema import TargetConfig

    options = dict(section(TargetConfig).options)
    if change.preserve is not None:
        options["preserve_ops"] = list(dict.fromkeys([*options.get("preserve_ops", ()), change.preserve]))
    if change.include is not None:
        kept = {name: _without(value, change.include) for name, value in options.items()}
        if kept == options:
            raise LowerdeckError(f"no list among the target's options has {change.include!r}")
        options = kept
    return options


def changed_shapes(change: Change) -> ModelConfig:
    """The section `model` with the change of shapes made.

    Raises:
        LowerdeckError: the model is exported like that already.
    """
    from lowerdeck.config.schema import ModelConfig

    config = section(ModelConfig)
    if change.shapes is None:
        return config
    changed = dataclasses.replace(
        config,
        input_shapes=change.shapes.applied(config.input_shapes),
        dynamic_shapes=[] if change.shapes.is_fixed else config.dynamic_shapes,
    )
    if changed == config:
        raise LowerdeckError("model.input_shapes and model.dynamic_shapes are like that already: the model reshapes")
    return changed


def fitted(inputs: Sequence[torch.Tensor], shapes: Sequence[Sequence[int]]) -> tuple[torch.Tensor, ...]:
    """Samples of other shapes, with the values of `inputs` repeated or cut off."""
    found = []
    for tensor, shape in zip(inputs, shapes, strict=True):
        count = math.prod(shape)
        repeated = tensor.flatten().repeat(-(-count // max(1, tensor.numel())))
        found.append(tensor if list(tensor.shape) == list(shape) else repeated[:count].reshape(tuple(shape)))
    return tuple(found)


def _without(value: Any, entry: str) -> Any:
    return [each for each in value if each != entry] if isinstance(value, list | tuple) else value


def _partitioned(model: Module, options: Mapping[str, Any], config: ModelConfig, seed: int) -> DelegationPlan:
    from lowerdeck import backends
    from lowerdeck.artifacts.programs import read_program, write_program
    from lowerdeck.config.flavor import flavor_of
    from lowerdeck.config.schema import FlavorConfig, TargetConfig
    from lowerdeck.steps.export import export
    from lowerdeck.steps.partition import partition

    target = section(TargetConfig)
    layout = config.memory_format, config.input_dtypes, config.sequences_as_images or False
    backend = backends.create(
        target.backend, device=target.device, options=dict(options), flavor=flavor_of(section(FlavorConfig))
    )
    with TemporaryDirectory() as folder:
        # Stored and read as by the stages: a copy in memory has other names, and a new program's constants are no data.
        exported, quantized = Path(folder, "exported.pt2"), Path(folder, "quantized.pt2")
        write_program(exported, export(model, config.input_shapes, config.dynamic_shapes, *layout))
        write_program(quantized, _quantized(exported, config, seed))
        plan = partition(read_program(quantized), backend).plan
    return dataclasses.replace(plan, mismatches=())


def _quantized(exported: Path, config: ModelConfig, seed: int) -> ExportedProgram:
    """The stored program, quantized by a few samples; as it is where nothing is quantized."""
    from lowerdeck.artifacts.programs import read_program
    from lowerdeck.execution.chosen.dataset import chosen_dataset
    from lowerdeck.execution.chosen.quantization import chosen_quantizer, chosen_scheme
    from lowerdeck.steps.calibrate import calibrate
    from lowerdeck.steps.quantize import quantize

    observing, converting = chosen_quantizer(), chosen_quantizer()  # preparing leaves marks on a quantizer
    if observing is None or converting is None:
        if chosen_scheme().rebuilds_model:
            raise LowerdeckError("changes are tried for schemes with observers; this one rebuilds the model")
        return read_program(exported)
    samples: list[tuple[torch.Tensor, ...]] = []
    if chosen_scheme().observes_samples:
        split = chosen_dataset(seed).calibration
        inputs = [split[index].inputs for index in range(min(_MAX_SAMPLES, len(split)))]
        # A dimension of varying size has samples of any of its sizes, which fit as they are.
        samples = inputs if config.dynamic_shapes else [fitted(each, config.input_shapes) for each in inputs]
    state = calibrate(read_program(exported), observing, samples, len(samples))
    return quantize(read_program(exported), converting, state)[0]
