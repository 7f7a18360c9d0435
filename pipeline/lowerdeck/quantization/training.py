"""Quantization-aware training: the model is trained with its weights and activations rounded.

It is part of the stage calibrate and refines the ranges and weights. As for calibration, batch norms have been folded
into convolutions, so the graph stays in evaluation mode. It is never switched between modes, because torchao would
replace eps and momentum of batch norms and the rate of dropouts by its own (pytorch/ao#2980). Without batch statistics,
gradients summed over single samples are those of the batch, so a program exported for one sample can be trained. See
ADR 0016.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch.utils._pytree import tree_leaves
from torchao.quantization.pt2e import HistogramObserver, PerChannelMinMaxObserver
from torchao.quantization.pt2e.fake_quantize import FakeQuantizeBase

from lowerdeck.compat.terminal import progress_bar
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.quantization import ObserverState
from lowerdeck.contracts.samples import Split, finite_sample
from lowerdeck.graph.masked_scores import behind_masks
from lowerdeck.graph.memory_formats import memory_format_of, to_memory_format
from lowerdeck.graph.state import initial_state
from lowerdeck.quantization.biases import make_room_for_biases
from lowerdeck.quantization.infinities import watched
from lowerdeck.quantization.pt2e import observer_state, prepare, replace_parameters
from lowerdeck.quantization.ranges import activation_ranges, constant_values, constants, observer_nodes
from lowerdeck.quantization.small_ranges import refine_small_steps

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import GraphModule
    from torchao.quantization.pt2e.quantizer import Quantizer

_MODEL, _OPTIMIZER = "model/", "optimizer/"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Hyperparameters, from quantization.training of the configuration."""

    epochs: int
    learning_rate: float
    """Adam's initial step size, which falls to zero along half a cosine."""
    batch_size: int
    seed: int
    """Determines the order of the samples in each epoch."""


class Checkpoints(Protocol):
    """Stores the state from which an interrupted training continues."""

    def load(self) -> tuple[int, Mapping[str, torch.Tensor]] | None:
        """The number of finished epochs and the tensors saved after them; None where nothing is saved."""
        ...

    def save(self, epochs: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Save `tensors` atomically as the state after this many epochs."""
        ...


@dataclass(frozen=True, kw_only=True)
class Training:
    """Hyperparameters, samples and checkpoints."""

    recipe: Recipe
    split: Split
    """Training samples, all with labels."""
    checkpoints: Checkpoints
    """Saved after every epoch."""
    output: int = 0
    """Index of the output with the class scores."""


_DIVERGED = (
    "the training diverged: weights or activations are no longer finite; lower quantization.training.learning_rate"
)


def train(
    program: ExportedProgram, quantizer: Quantizer, observed: Iterable[tuple[torch.Tensor, ...]], training: Training
) -> ObserverState:
    """Calibrate, then train with cross-entropy.

    The result depends on the arguments alone: a training that continues from its last checkpoint gives the same tensors
    as an uninterrupted one.

    Args:
        program: ATen program of the float model.
        quantizer: The backend's quantizer for training.
        observed: Inputs that determine the ranges before every epoch and at the end; iterated repeatedly.
        training: Hyperparameters, samples and checkpoints.

    Raises:
        LowerdeckError: the model has state or a masked attention, what would be quantized is infinite or NaN, the
            outputs are not scores of the labels' classes, or the training diverged.
    """
    if written := initial_state(program):
        raise LowerdeckError(
            f"the model keeps state between calls (the buffers {', '.join(written)}), and training in any order of "
            "samples would give it values that it never takes; remove quantization.training"
        )
    prepared, memory_format = prepare(program, quantizer), memory_format_of(program)
    if not behind_masks(prepared).isdisjoint(observer_nodes(prepared)):
        raise LowerdeckError(
            "the model has a masked attention, and training would give its scores the range of the mask, which leaves "
            "them no steps; remove quantization.training"
        )
    inputs = _InMemoryFormat(observed, memory_format)
    replace_parameters(prepared, dict(prepared.named_parameters()))  # training must not change those of `program`
    recipe, samples = training.recipe, _InMemoryFormat(training.split, memory_format)
    for parameter in prepared.parameters():  # constants that a quantizer made parameters may be infinite
        if not bool(parameter.isfinite().all()):
            parameter.requires_grad_(False)
    optimizer = torch.optim.Adam(prepared.parameters(), lr=recipe.learning_rate)
    saved = training.checkpoints.load()
    if saved is not None:
        _restore(prepared, optimizer, saved[1])
    else:
        with watched(prepared) as check_finite:  # no weight has been changed yet: the model is to blame
            _find_ranges(prepared, inputs, check_finite)
    for epoch in range(saved[0] if saved else 0, recipe.epochs):
        if saved or epoch:
            _find_ranges(prepared, inputs)
        _train_epoch(prepared, optimizer, samples, training, epoch)
        training.checkpoints.save(epoch + 1, _tensors(prepared, optimizer))
    _find_ranges(prepared, inputs)
    contiguous = torch.contiguous_format  # of a transposed weight, nothing else can be written
    trained = {
        name: parameter.detach().clone(memory_format=contiguous) for name, parameter in prepared.named_parameters()
    }
    state = dataclasses.replace(observer_state(prepared), trained=trained)
    return dataclasses.replace(state, ranges=activation_ranges(prepared, inputs))


@dataclass(frozen=True)
class _InMemoryFormat:
    """Inputs or samples, converted to the program's memory format."""

    source: Any
    memory_format: Any

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        return (to_memory_format(inputs, self.memory_format) for inputs in self.source)

    def sample(self, index: int) -> tuple[tuple[torch.Tensor, ...], int]:
        """Inputs and label."""
        sample = finite_sample(self.source, index)
        assert sample.label is not None, "training_split checks that all samples have labels"
        return to_memory_format(sample.inputs, self.memory_format), sample.label


def _find_ranges(
    prepared: GraphModule, inputs: Iterable[tuple[torch.Tensor, ...]], check_finite: Callable[[], None] = lambda: None
) -> None:
    """Freeze the ranges of activations, and set those of weights, as calibration finds them for the current weights.

    The quantizers' own observers average the smallest and largest value of each batch. With batches of one sample,
    such average ranges would clip about half of the samples.

    Args:
        prepared: A prepared model.
        inputs: What observers see.
        check_finite: Raises LowerdeckError if what they see was infinite before any training.
    """
    observers: dict[FakeQuantizeBase, Any] = {}
    fake_quantizers, weights = _fake_quantizers(prepared)
    for fake_quantizer in (*fake_quantizers, *weights):
        fake_quantizer.disable_fake_quant()
        fake_quantizer.disable_observer()
    for fake_quantizer in fake_quantizers:
        observers[fake_quantizer] = _range_observer(fake_quantizer)

    def observe(fake_quantizer: Any, arguments: tuple[torch.Tensor, ...]) -> None:
        if not bool(arguments[0].isfinite().all()):  # weights that are finite, and too large for the next layer
            check_finite()
            raise LowerdeckError(_DIVERGED)
        observers[fake_quantizer](arguments[0])

    hooks = [fake_quantizer.register_forward_pre_hook(observe) for fake_quantizer in fake_quantizers]
    with torch.no_grad():
        for sample in progress_bar(inputs, desc="calibrate", unit="sample", disable=None):
            prepared(*sample)
        check_finite()
        for hook in hooks:
            hook.remove()
        _reobserve_weights(prepared)
        refine_small_steps(prepared, observers)
        for fake_quantizer, observer in observers.items():
            observer.eps = fake_quantizer.activation_post_process.eps
            _fix_range(fake_quantizer, *observer.calculate_qparams())
        make_room_for_biases(prepared)
    for fake_quantizer in (*fake_quantizers, *weights):
        fake_quantizer.enable_fake_quant()
    for fake_quantizer in weights:
        fake_quantizer.enable_observer()


def _range_observer(fake_quantizer: Any) -> Any:
    inner = fake_quantizer.activation_post_process
    limits = {"quant_min": inner.quant_min, "quant_max": inner.quant_max, "eps": float(inner.eps)}
    if fake_quantizer.is_per_channel:  # weights that the model computes
        return PerChannelMinMaxObserver(ch_axis=inner.ch_axis, dtype=inner.dtype, qscheme=inner.qscheme, **limits)
    return HistogramObserver(dtype=inner.dtype, qscheme=inner.qscheme, **limits)


def _fix_range(fake_quantizer: Any, scale: torch.Tensor, zero_point: torch.Tensor) -> None:
    """Set the observer of `fake_quantizer` to the range of these steps."""
    inner, shape = fake_quantizer.activation_post_process, (-1,) if fake_quantizer.is_per_channel else ()
    inner.min_val = (scale * (inner.quant_min - zero_point)).reshape(shape).to(torch.float32)
    inner.max_val = (scale * (inner.quant_max - zero_point)).reshape(shape).to(torch.float32)
    scale, zero_point = inner.calculate_qparams()
    fake_quantizer.scale, fake_quantizer.zero_point = scale.reshape(-1), zero_point.reshape(-1).to(torch.int32)


def _train_epoch(
    prepared: GraphModule, optimizer: torch.optim.Optimizer, samples: _InMemoryFormat, training: Training, epoch: int
) -> None:
    recipe = training.recipe
    order = np.random.default_rng([recipe.seed, epoch]).permutation(len(samples)).tolist()
    batches = [order[start : start + recipe.batch_size] for start in range(0, len(order), recipe.batch_size)]
    loss, hits, seen = 0.0, 0, 0
    with progress_bar(
        total=len(order), desc=f"train {epoch + 1}/{recipe.epochs}", unit="sample", disable=None
    ) as progress:
        for step, batch in enumerate(batches):
            done = (epoch + step / len(batches)) / recipe.epochs
            for group in optimizer.param_groups:
                group["lr"] = recipe.learning_rate * (1 + math.cos(math.pi * done)) / 2
            optimizer.zero_grad(set_to_none=True)
            for index in batch:
                inputs, label = samples.sample(index)
                scores = tree_leaves(prepared(*inputs))[training.output]
                sample_loss, hit = _accumulate_gradients(scores, label, share=1 / len(batch))
                loss, hits, seen = loss + sample_loss, hits + hit, seen + 1
            optimizer.step()
            progress.update(len(batch))
            progress.set_postfix_str(f"loss {loss / seen:.4f}, accuracy {100 * hits / seen:.1f} %")
    if not all(bool(each.isfinite().all()) for each in prepared.parameters() if each.requires_grad):
        raise LowerdeckError(_DIVERGED)


def _accumulate_gradients(scores: torch.Tensor, label: int, *, share: float) -> tuple[float, bool]:
    """Add the gradients of one sample, and return its loss and whether it is classified correctly."""
    if scores.ndim != 2 or scores.shape[0] != 1 or label >= scores.shape[1]:
        raise LowerdeckError(
            f"the model's output has shape {list(scores.shape)}, and a training sample has the label {label}: training "
            "needs class scores [1, classes]; choose a dataset that fits the model, name another output as "
            "quantization.training.output, or remove quantization.training"
        )
    loss = torch.nn.functional.cross_entropy(scores, torch.tensor([label]))
    (loss * share).backward()  # type: ignore[no-untyped-call]
    return float(loss), int(scores.argmax()) == label


def _reobserve_weights(prepared: GraphModule) -> None:
    """Set the ranges of weights to those of their current values, because observers also remember earlier ones."""
    modules = dict(prepared.named_modules(remove_duplicate=False))
    values = constant_values(prepared)
    with torch.no_grad():
        for node in observer_nodes(prepared):
            fake_quantizer = modules[node.target]
            if node in values and isinstance(fake_quantizer, FakeQuantizeBase):
                fake_quantizer.activation_post_process.reset_min_max_vals()
                fake_quantizer.activation_post_process(values[node])


def _fake_quantizers(prepared: GraphModule) -> tuple[list[Any], list[Any]]:
    """The fake quantizers of activations and those of weights, each once even if several nodes share it."""
    modules = dict(prepared.named_modules(remove_duplicate=False))
    fixed = constants(prepared)
    found: tuple[dict[Any, None], dict[Any, None]] = ({}, {})
    for node in observer_nodes(prepared):
        if isinstance(modules[node.target], FakeQuantizeBase):
            found[node in fixed].setdefault(modules[node.target])
    return list(found[0]), list(found[1])


def _tensors(prepared: GraphModule, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The state of the model and the optimizer."""
    parameters = dict(prepared.named_parameters())
    named = {**parameters, **dict(prepared.named_buffers())}
    tensors = {_MODEL + name: tensor.detach().clone().contiguous() for name, tensor in named.items()}
    for name, parameter in parameters.items():
        for key, value in optimizer.state[parameter].items():
            tensors[f"{_OPTIMIZER}{key}/{name}"] = value.clone().contiguous()
    return tensors


def _restore(prepared: GraphModule, optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor]) -> None:
    parameters = dict(prepared.named_parameters())
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[_MODEL + name])
    for name, _ in list(prepared.named_buffers()):
        owner, _, key = name.rpartition(".")
        setattr(prepared.get_submodule(owner), key, tensors[_MODEL + name].clone())
    for path, tensor in tensors.items():
        if path.startswith(_OPTIMIZER):
            key, name = path.removeprefix(_OPTIMIZER).split("/", 1)
            optimizer.state[parameters[name]][key] = tensor.clone()
