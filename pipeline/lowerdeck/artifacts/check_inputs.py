"""A few inputs of the model, on which stages compare programs with what they were made from."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import as_tensors, require_file, write_bytes
from lowerdeck.contracts.conformance import NUM_CHECK_INPUTS

if TYPE_CHECKING:
    import torch


def write_check_inputs(samples: Iterable[tuple[torch.Tensor, ...]]) -> None:
    """Write the first of `samples`, each the inputs of one call with their batch dimension."""
    import torch
    from safetensors.torch import save

    tensors = {
        # safetensors refuses tensors that share memory, as windows of a series or a mask of all samples do.
        f"{sample}.{index}": value.clone(memory_format=torch.contiguous_format)
        for sample, inputs in enumerate(islice(samples, NUM_CHECK_INPUTS))
        for index, value in enumerate(inputs)
    }
    write_bytes(paths.CHECK_INPUTS, save(dict(sorted(tensors.items()))))


def read_check_inputs() -> list[tuple[torch.Tensor, ...]]:
    """The samples that `write_check_inputs` wrote."""
    from safetensors.torch import load

    by_sample: dict[int, dict[int, torch.Tensor]] = {}
    content = require_file(paths.CHECK_INPUTS).read_bytes()
    with as_tensors(paths.CHECK_INPUTS):
        for name, tensor in load(content).items():
            sample, _, index = name.partition(".")
            by_sample.setdefault(int(sample), {})[int(index)] = tensor
    return [tuple(inputs[index] for index in sorted(inputs)) for _, inputs in sorted(by_sample.items())]
