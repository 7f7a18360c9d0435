"""From a PyTorch model to an ATen program that every backend lowers."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from lowerdeck.contracts.backends import MemoryFormat
from lowerdeck.graph import outputs
from lowerdeck.graph.adaptive_pooling import fix_adaptive_max_pooling
from lowerdeck.graph.added_masks import fill_added
from lowerdeck.graph.attention import attention_as_products
from lowerdeck.graph.branches import numbers_as_tensors
from lowerdeck.graph.channels_last import ChannelsLast
from lowerdeck.graph.constant_folding import fold_constants
from lowerdeck.graph.cropping import crop_by_slices
from lowerdeck.graph.decompositions import (
    average_slopes,
    bounds_as_floats,
    decompose_rare_operators,
    drop_assertions,
    fill_by_masks,
)
from lowerdeck.graph.diagonals import fill_diagonals, write_diagonals
from lowerdeck.graph.einsum import einsum_as_products
from lowerdeck.graph.embedding_bags import reduce_embeddings
from lowerdeck.graph.empty_rows import answer_empty_rows
from lowerdeck.graph.export_checks import (
    check_dense,
    check_norms,
    check_not_random,
    check_operators,
    check_outputs,
    check_parameters,
    check_real,
    check_writes,
    drop_unread_complex,
)
from lowerdeck.graph.function_transforms import apply_transforms
from lowerdeck.graph.masked_extrema import fill_with_extrema
from lowerdeck.graph.masks import bound_masks, fill_assigned
from lowerdeck.graph.new_memory import fill_new_memory
from lowerdeck.graph.paired_results import separate_pairs
from lowerdeck.graph.recurrent_layers import RecurrentAsLinear
from lowerdeck.graph.same_padding import pad_even_kernels
from lowerdeck.graph.sequences import sequences_as_images
from lowerdeck.graph.softmax_by_hand import name_softmax
from lowerdeck.graph.sorting import sort_by_topk
from lowerdeck.graph.state import (
    drop_unread_writes,
    name_views,
    store_buffers,
    without_hidden_writes,
    write_new_tensors,
)
from lowerdeck.graph.volumes import volumes_as_images

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram


def trace(
    model: torch.nn.Module,
    inputs: tuple[torch.Tensor, ...],
    dynamic_shapes: Any = None,
    memory_format: MemoryFormat = "contiguous",
    as_images: bool = False,
) -> ExportedProgram:
    """The ATen program of `model`, with what no backend lowers rewritten.

    Args:
        model: In eval mode.
        inputs: Examples of them.
        dynamic_shapes: As torch.export takes them.
        memory_format: That of inputs with four dimensions, which other tensors shall have, too.
        as_images: Whether layers over sequences become layers over images.

    Raises:
        LowerdeckError: the model returns other things than tensors in containers, calls operators of torchvision,
            computes with complex numbers or random ones, or as in training, has parameters that are not finite or that
            it writes, or pools in a way that ExecuTorch does not have; the message has the reason, and what to change.
        Exception: whatever torch.export, or the model's own code, raises.
    """
    with ChannelsLast() if memory_format == "channels_last" else nullcontext() as mode, RecurrentAsLinear():
        hook = None if mode is None else model.register_forward_hook(mode.check_returned)
        try:
            traced = outputs.traced(model, inputs, dynamic_shapes)
        finally:
            if hook is not None:
                hook.remove()
    check_outputs(traced, type(model).__name__)
    traced = apply_transforms(traced)
    check_operators(traced)
    check_not_random(traced)
    check_norms(traced)
    drop_unread_complex(traced)
    check_real(traced)
    check_dense(traced)
    check_parameters(traced)
    name_views(traced)
    drop_unread_writes(traced)
    check_writes(traced)
    traced = outputs.with_plain_containers(traced)
    store_buffers(traced)
    average_slopes(traced)
    fill_new_memory(traced)
    fill_diagonals(traced)
    write_new_tensors(traced)
    traced = without_hidden_writes(traced)
    drop_assertions(traced)
    if as_images:
        sequences_as_images(traced, memory_format)
    pad_even_kernels(traced)
    volumes_as_images(traced, memory_format)
    reduce_embeddings(traced)
    write_diagonals(traced)
    fill_by_masks(traced)
    fold_constants(traced)
    fix_adaptive_max_pooling(traced)
    einsum_as_products(traced)
    decompose_rare_operators(traced)
    bounds_as_floats(traced)
    numbers_as_tensors(traced)
    fill_assigned(traced)
    fill_added(traced)
    name_softmax(traced)
    fill_with_extrema(traced)
    sort_by_topk(traced)
    separate_pairs(traced)
    attention_as_products(traced)
    answer_empty_rows(traced)
    bound_masks(traced)
    crop_by_slices(traced)
    outputs.rename_outputs(traced)
    return traced
