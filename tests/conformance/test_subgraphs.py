"""lowerdeck.conformance.subgraphs: the inputs on which partitions are compared beside the samples."""

from __future__ import annotations

import executorch.kernels.quantized  # noqa: F401  registers the operators
import torch
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch import Tensor, nn

from lowerdeck.conformance.subgraphs import Subgraph


class Mixed(nn.Module):
    """A partition with every kind of input."""

    def forward(self, quantized: Tensor, floats: Tensor, indices: Tensor) -> Tensor:
        of_integers: Tensor = torch.ops.quantized_decomposed.dequantize_per_tensor(
            quantized, 0.1, 0, -32767, 32767, torch.int16
        )
        return (of_integers + floats)[indices]


def test_inputs_reach_both_ends_however_few_elements_they_have() -> None:
    """One drawing in 65536 was at an end of 16 bits, and a sum of eight elements never left its range."""
    sample = (torch.zeros(8, dtype=torch.int16), torch.linspace(-2.5, 3.0, 8), torch.tensor([3, 5]))
    program = torch.export.export(Mixed(), sample)
    part = Subgraph(LoweredBackendModule(program, "", b"", []), ("quantized", "floats", "indices"))
    ((quantized, floats, indices),) = part.synthetic_inputs([sample, sample], seed=0)
    assert quantized.dtype == torch.int16
    for drawn, low, high in ((quantized, -32767, 32767), (floats, -2.5, 3.0)):
        assert (float(drawn.min()), float(drawn.max())) == (low, high)
        assert drawn.eq(low).sum() == drawn.eq(high).sum() == 2, "half of all elements are drawn from the range"
        assert len(set(drawn.tolist())) == 6
    assert torch.equal(indices, sample[2])


def test_a_single_element_is_drawn_at_both_of_its_ends() -> None:
    """It was only at its lower end."""
    samples = [(torch.zeros(1, dtype=torch.int16), torch.full((1,), end), torch.tensor([0])) for end in (-2.5, 3.0)]
    program = torch.export.export(Mixed(), samples[0])
    part = Subgraph(LoweredBackendModule(program, "", b"", []), ("quantized", "floats", "indices"))
    drawn = part.synthetic_inputs(samples, seed=0)
    assert [[each.item() for each in values] for values in drawn] == [[-32767, -2.5, 0], [32767, 3.0, 0]]


def test_constants_stay_as_they_are() -> None:
    """An operator may take a quantized number as an input of the partition, and a piece of it has the number inside."""
    sample = (torch.tensor(127, dtype=torch.int16), torch.linspace(-2.5, 3.0, 8), torch.tensor([3, 5]))
    program = torch.export.export(Mixed(), sample)
    part = Subgraph(LoweredBackendModule(program, "", b"", []), ("number", "floats", "indices"), {"number"})
    ((number, floats, _),) = part.synthetic_inputs([sample], seed=0)
    assert number == 127
    assert not torch.equal(floats, sample[1])
