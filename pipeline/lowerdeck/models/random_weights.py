"""Random weights with which every layer of a network computes something, as it does with trained ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lowerdeck.contracts.errors import is_full_memory

if TYPE_CHECKING:
    from torch.nn import Module

_BATCH = 4
_SEED = 0
_SMALL = 1e-4
"""Largest factor of a layer scale that leaves its branch nothing of 8 bits; ConvNeXt begins with 1e-6."""


def fit_to_noise(model: Module, input_shapes: Sequence[Sequence[int]]) -> None:
    """Let batch norms fit noise, and draw the weights that begin with zeros or nearly zeros, in place.

    As libraries initialise networks, activations become smaller from layer to layer, because batch norms that have seen
    nothing change nothing, and heads of vision transformers are zero: quantized, most such networks return zeros.

    Args:
        model: In eval mode, with weights that nobody trained.
        input_shapes: Shape of every input, float32, with its batch dimension.
    """
    import torch
    from torch.nn import Parameter, init
    from torch.nn.modules.batchnorm import _BatchNorm

    for parameter in filter(Parameter.numel, model.parameters()):
        if parameter.dim() > 1 and not parameter.any():
            init.normal_(parameter, std=0.05)
        elif 0 < parameter.abs().max() < _SMALL:
            init.normal_(parameter, std=0.1)
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    if not norms:
        return
    momenta, num_threads = [norm.momentum for norm in norms], torch.get_num_threads()
    generator = torch.Generator().manual_seed(_SEED)
    noise = [torch.randn(_BATCH, *shape[1:], generator=generator) for shape in input_shapes]
    for norm in norms:
        norm.momentum = None  # the average of all that it sees
        norm.train()
    torch.set_num_threads(1)  # sums of several threads differ by their number
    try:
        with torch.no_grad():
            model(*noise)
    except Exception as error:  # export runs the model, too, and says what is wrong with it
        if is_full_memory(error):
            raise  # else the weights would be other ones
    finally:
        torch.set_num_threads(num_threads)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            norm.eval()
