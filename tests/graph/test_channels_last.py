"""Models that are written for contiguous memory, on targets that want it channels-last."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.steps.export import export

SHAPE = [1, 3, 8, 8]


class LeNet(nn.Module):
    """`x.view(x.size(0), -1)` between convolutions and a linear layer, as in PyTorch's tutorials."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.linear = nn.Conv2d(3, 4, 3), nn.Linear(4 * 3 * 3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.max_pool2d(torch.relu(self.convolution(x)), 2)
        scores: torch.Tensor = self.linear(y.view(y.size(0), -1))
        return scores


class Written(LeNet):
    """Writes into a view, and so into the whole."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.convolution(x)
        flat = y.view(-1)
        flat[0] *= 2
        result: torch.Tensor = y + 1
        return result


class WrittenElsewhere(LeNet):
    """Writes into something else than the view."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.convolution(x)
        rows = y.view(-1, 2, 2).sum(1)
        rows[0] *= 2
        result: torch.Tensor = rows + 1
        return result


@pytest.mark.parametrize("network", [LeNet, WrittenElsewhere])
def test_a_view_of_channels_last_memory_is_a_copy(network: type[nn.Module]) -> None:
    model = network().eval()
    x = torch.randn(SHAPE)
    program = export(model, [SHAPE], memory_format="channels_last").module(check_guards=False)
    torch.testing.assert_close(program(x.to(memory_format=torch.channels_last)), model(x))


@pytest.mark.parametrize("flatten", [lambda y: torch.flatten(y, 1), lambda y: y.reshape(1, -1), lambda y: y.flatten(1)])
def test_an_image_is_flattened_by_a_copy_of_its_own(flatten: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Which quantizers know: the copy within a `reshape` was one of floats, between two conversions."""

    class Flattened(LeNet):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(flatten(torch.max_pool2d(torch.relu(self.convolution(x)), 2)))  # type: ignore[no-any-return]

    program = export(Flattened().eval(), [SHAPE], memory_format="channels_last")
    operators = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert [each for each in operators if "contiguous" in each or "clone" in each] == ["aten.contiguous.default"]


class Reshaped(LeNet):
    """Writes into what is a view of contiguous memory, and a copy of another."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.convolution(x)
        y.flatten(1)[:, :3] = 0
        result: torch.Tensor = y + 1
        return result


class RectifiedHead(LeNet):
    """Ends in a head that begins with an activation in place, and reads the image later."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.convolution(x)
        return F.relu(torch.flatten(y, 1), inplace=True).mean() + y.mean((2, 3))


class RectifiedImage(LeNet):
    """Flattens an image, writes into it, and reads what it has flattened."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.convolution(x)
        flat = y.flatten(1)
        return F.relu(y, inplace=True).mean() + flat


class Returned(LeNet):
    """Writes into a view, and returns the whole."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.convolution(x)
        flat = y.view(1, -1)
        flat += 1
        return y


class Incremented(LeNet):
    """Writes into a view of what nothing reads any more."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat: torch.Tensor = self.convolution(x).view(1, -1)
        flat += 1
        return flat


class Rectified(LeNet):
    """Writes into a view, and reads nothing else after it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.max_pool2d(self.convolution(x), 2)
        return F.relu(y.view(y.size(0), -1), inplace=True)


@pytest.mark.parametrize("network", [Written, Reshaped, RectifiedHead, RectifiedImage, Returned])
def test_reading_what_a_copy_was_written_for_is_refused_with_the_ways_out(network: type[nn.Module]) -> None:
    x, model = torch.randn(SHAPE), network().eval()
    torch.testing.assert_close(export(model, [SHAPE]).module(check_guards=False)(x), model(x))
    with pytest.raises(LowerdeckError, match=r"reads an image.*model\.memory_format: contiguous"):
        export(model, [SHAPE], memory_format="channels_last")


@pytest.mark.parametrize("network", [Rectified, Incremented])
def test_writing_into_a_copy_that_stands_for_the_whole_is_no_difference(network: type[nn.Module]) -> None:
    x, model = torch.randn(SHAPE), network().eval()
    program = export(model, [SHAPE], memory_format="channels_last").module(check_guards=False)
    torch.testing.assert_close(program(x.to(memory_format=torch.channels_last)), model(x))


def test_sizes_that_do_not_fit_are_reported_as_ever() -> None:
    class Wrong(LeNet):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.convolution(x).view(7, -1)
            return result

    with pytest.raises(LowerdeckError, match="shape"):
        export(Wrong().eval(), [SHAPE], memory_format="channels_last")


class Decoder(nn.Module):
    """A linear layer's result becomes an image: float32 [1 x 6] -> [1 x 4 x 4 x 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.first = nn.Linear(6, 8 * 4 * 4), nn.Conv2d(8, 8, 3, padding=1)
        self.last = nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        image = torch.relu(self.linear(x)).view(-1, 8, 4, 4)
        result: torch.Tensor = self.last(torch.relu(self.first(image)))
        return result


class Coordinates(nn.Module):
    """An image and constant coordinates: float32 [1 x 3 x 8 x 8] -> [1 x 4 x 8 x 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.grid, self.first = nn.Buffer(torch.randn(1, 2, 8, 8)), nn.Conv2d(5, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.first(torch.cat([x, self.grid], 1)))


@pytest.mark.parametrize(("network", "shape"), [(Decoder, [1, 6]), (Coordinates, [1, 3, 8, 8])])
def test_convolutions_of_contiguous_tensors_are_left_to_cmsis_nn(network: type[nn.Module], shape: list[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    samples = [(torch.randn(shape, generator=generator),) for _ in range(8)]
    verdict, detail = lowered(network().eval(), samples, create("cortex_m55"))
    assert verdict == "right", detail
    program = export(network().eval(), [shape], memory_format="channels_last")
    results = [node.meta["val"] for node in program.graph.nodes if node.target == torch.ops.aten.conv2d.default]
    assert results
    assert all(result.is_contiguous(memory_format=torch.channels_last) for result in results)


class Spectrum(nn.Module):
    """A spectrogram as an image of one channel: float32 [1 x 8 x 12]."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.convolution(x.unsqueeze(1)).relu()
        return result


def test_convolutions_of_one_channel_are_channels_last() -> None:
    """PyTorch's convolution takes their memory for contiguous, and CMSIS-NN left the layer to portable kernels."""
    program = export(Spectrum().eval(), [[1, 8, 12]], memory_format="channels_last")
    (convolution,) = program.graph.find_nodes(op="call_function", target=torch.ops.aten.conv2d.default)
    assert convolution.meta["val"].is_contiguous(memory_format=torch.channels_last)
