"""Step calibrate: representative samples through the prepared model -> observer state, and trained weights."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from lowerdeck.compat.terminal import progress_bar
from lowerdeck.compat.torchao import HISTOGRAM_SEARCH
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.quantization import ObserverState
from lowerdeck.evaluation.quantization_error import masked_in_both
from lowerdeck.graph.exact_integers import computed_of_integers
from lowerdeck.graph.mask_numbers import masked_outputs
from lowerdeck.graph.memory_formats import memory_format_of, to_memory_format
from lowerdeck.graph.source_lines import source_line
from lowerdeck.graph.state import initial_state, with_own_state
from lowerdeck.quantization.biases import make_room_for_biases
from lowerdeck.quantization.explicit_state import stream
from lowerdeck.quantization.histogram_search import searched_range
from lowerdeck.quantization.infinities import watched
from lowerdeck.quantization.pt2e import library_of, observer_state, prepare
from lowerdeck.quantization.ranges import activation_ranges
from lowerdeck.quantization.small_ranges import refine_small_steps
from lowerdeck.quantization.training import Training, train

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from torch.export import ExportedProgram
    from torchao.quantization.pt2e.quantizer import Quantizer

_MOST_CHANGED = 0.01
"""Share of the largest output: quantizers decompose some functions, and bound minus infinity in masks."""
_LEAST_DIFFERENCE = 1e-6
_PAIRS = (torch.ops.aten.max.dim, torch.ops.aten.min.dim)
_MOST_OTHER_INTEGERS = 0.5
_MOST_COMPARED = 4
"""Samples on which the prepared model is compared with the program: a mask may be without effect for the first one."""


def calibrate(
    program: ExportedProgram,
    quantizer: Quantizer,
    samples: Iterable[tuple[torch.Tensor, ...]],
    num_samples: int,
    training: Training | None = None,
) -> ObserverState:
    """Run `samples` through the observers, and train the model if `training` is set.

    Args:
        program: ATen program of the float model.
        quantizer: The backend's quantizer.
        samples: Inputs of the model with their batch dimension. They are iterated twice, because clipped values can
            only be counted once the ranges are known. A model with state sees them as one stream: its state lasts from
            sample to sample, so that observers see the values that it takes.
        num_samples: Number of samples. With 0, the program runs on its example inputs, so that the observers of
            weights see these.
        training: Quantization-aware training, which `quantizer` must support.

    Raises:
        LowerdeckError: the prepared model, which is still in float, computes something else than `program`, or what
            would be quantized is infinite or NaN, or leaves a range that `quantizer` fixes.
    """
    if training is not None:
        return train(program, quantizer, samples, training)
    prepared, memory_format = prepare(program, quantizer), memory_format_of(program)

    def inputs(purpose: str) -> Iterator[tuple[torch.Tensor, ...]]:
        for sample in progress_bar(samples, total=num_samples, desc=purpose, unit="sample", disable=None):
            yield to_memory_format(sample, memory_format)

    with torch.no_grad():
        if num_samples == 0:
            assert program.example_inputs is not None
            example = program.example_inputs[0]
            outputs = stream(prepared, program)(*example), with_own_state(program)(*example)
            _check_prepared([(example, *outputs)], program, quantizer)
            return observer_state(prepared)
        execute, in_float, compared = stream(prepared, program), with_own_state(program), list[tuple[Any, Any, Any]]()
        num_compared = min(num_samples, _MOST_COMPARED) if not initial_state(program) else 1
        with watched(prepared) as check_finite:
            for index, sample in enumerate(inputs("calibrate")):
                try:
                    outputs = execute(*sample)
                except RuntimeError:  # torch.histc refuses what infinity led to
                    check_finite()
                    raise
                if index < num_compared:
                    compared.append((sample, outputs, in_float(*sample)))
                if index + 1 == num_compared:
                    _check_prepared(compared, program, quantizer)
    if len(compared) < num_compared:  # there are fewer samples than were announced
        _check_prepared(compared, program, quantizer)
    check_finite()
    refine_small_steps(prepared)
    make_room_for_biases(prepared)
    state, clipped = observer_state(prepared), inputs("count what is clipped")
    with HISTOGRAM_SEARCH.active(searched_range):
        return dataclasses.replace(state, ranges=activation_ranges(prepared, clipped, stream(prepared, program)))


def _check_prepared(compared: Sequence[tuple[Any, Any, Any]], program: ExportedProgram, quantizer: Quantizer) -> None:
    """Raise LowerdeckError if what is about to be quantized is another network than the model.

    Args:
        compared: A few samples, each with what the prepared model computes for it, with observers that change nothing,
            and what the float program computes.
        program: ATen program of the float model.
        quantizer: The one that prepared the model.
    """
    if not compared:
        return
    samples, given, wanted = ([tree_leaves(each) for each in part] for part in zip(*compared, strict=True))
    by = library_of(quantizer) or "the quantizers"
    exact, names = computed_of_integers(program), program.graph_signature.user_outputs
    masked = masked_outputs(program)
    for number, pairs in enumerate(zip(zip(*given, strict=True), zip(*wanted, strict=True), strict=True)):
        difference = _difference(list(zip(*pairs, strict=True)), masked[number], is_exact=names[number] in exact)
        if difference is not None:
            raise LowerdeckError(
                f"{by} and torchao prepare another network for quantization than the model: "
                f"output {number} {difference} before anything is rounded. {_likely_cause(samples, program)}Choose "
                "another target, or `quantization: float32` where the target has it, or rewrite the model: "
                "docs/known_faults.md has what such faults were found at"
            )


def _likely_cause(samples: Sequence[Sequence[Any]], program: ExportedProgram) -> str:
    """A sentence about what of the model a quantizer may not keep; nothing where it has nothing of the kind."""
    if any(_exceeds_32_bits(value) for sample in samples for value in sample):
        return "Inputs have integers that need more than 32 bits, which the target may not have. "
    nodes = program.graph.find_nodes(op="placeholder")
    signature = program.graph_signature
    is_repeated = any(len(node.users) > 1 for node in nodes if node.name in signature.inputs_to_parameters)
    norms = program.graph.find_nodes(op="call_function", target=torch.ops.aten.batch_norm.default)
    pairs = [node for node in program.graph.nodes if node.target in _PAIRS]
    lines = ", ".join(dict.fromkeys(filter(None, (source_line(node.meta.get("stack_trace")) for node in pairs))))
    found = ["layers that are called several times"] * is_repeated + ["batch norms"] * bool(norms)
    found += [f"extrema with their places{lines and f' ({lines})'}"] * bool(pairs)
    return f"The model has {' and '.join(found)}, where such faults were found. " if found else ""


def _exceeds_32_bits(value: Any) -> bool:
    is_long = isinstance(value, torch.Tensor) and value.dtype == torch.int64
    # Compared on both sides: the absolute value of the smallest number is negative.
    limits = torch.iinfo(torch.int32)
    return is_long and bool(((value > limits.max) | (value < limits.min)).any())


def _difference(
    pairs: Sequence[tuple[Any, Any]], masked_numbers: Collection[tuple[float, float]], *, is_exact: bool
) -> str | None:
    """How an output, given and wanted for each sample, differs; None where decompositions explain the difference.

    Args:
        pairs: Those of all samples.
        masked_numbers: Those that masks leave, as in `OutputSpec`, beside which others would seem small.
        is_exact: Whether integers may not differ.
    """
    if not isinstance(pairs[0][1], torch.Tensor):
        return None
    for given, wanted in pairs:
        if (given.dtype, given.shape) != (wanted.dtype, wanted.shape):
            kinds = [f"{str(each.dtype).removeprefix('torch.')} {list(each.shape)}" for each in (given, wanted)]
            return f"is {kinds[0]} and not {kinds[1]}"
    # In a row: samples may differ in size.
    all_given, all_wanted = (torch.cat([one.flatten() for one in each]) for each in zip(*pairs, strict=True))
    if not all_wanted.is_floating_point():
        return _difference_of_integers(all_given, all_wanted, 0.0 if is_exact else _MOST_OTHER_INTEGERS)
    finite = all_wanted.isfinite() & ~masked_in_both(all_given.double(), all_wanted.double(), masked_numbers)
    errors, largest = (all_given - all_wanted)[finite].abs(), all_wanted[finite].abs()
    if not finite.any() or errors.max() <= max(_MOST_CHANGED * float(largest.max()), _LEAST_DIFFERENCE):
        return None
    return f"is off by {float(errors.max()):.3g} of {float(largest.max()):.3g}"


def _difference_of_integers(given: torch.Tensor, wanted: torch.Tensor, most: float) -> str | None:
    """`most`: share of them that may differ; the largest of nearly equal floats may be another one."""
    differ = given != wanted
    if not wanted.numel() or differ.double().mean() <= most:
        return None
    place = tuple(differ.nonzero()[0])
    found = f"has {given[place].item()} in place of {wanted[place].item()}"
    return f"{found}, because the target's integers have 32 bits," if _exceeds_32_bits(wanted) else found
