"""lowerdeck.steps.export_errors: a refusal has the line of the model's code, and what to change there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.samples import Sample
from lowerdeck.steps.eager_comparison import answers
from lowerdeck.steps.export import export


class Net(nn.Module):
    """A layer, and what a function makes of it."""

    def __init__(self, function: Callable[[Net, torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(4, 4), function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, self.layer(x))


def doubled_if_large(net: Net, x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.mean() > 0 else x


def as_many_as_the_sum(net: Net, x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(int(x.sum()), 3)


def in_numpy(net: Net, x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.tanh(x.numpy()))


def printed(net: Net, x: torch.Tensor) -> torch.Tensor:
    print(f"{x.mean():.2f}")
    return x


def of_another_shape(net: Net, x: torch.Tensor) -> torch.Tensor:
    return x.reshape(3, 7)


def refused(net: Net, x: torch.Tensor) -> torch.Tensor:
    raise ValueError("five channels")


FLOW, OTHER = "torch.where or torch.cond", "Write such lines with PyTorch's functions"
OWN = "Without export, the model raises "


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (doubled_if_large, FLOW),
        (as_many_as_the_sum, FLOW),
        (in_numpy, OTHER),
        (printed, OTHER),
        (of_another_shape, f"{OWN}RuntimeError: shape '\\[3, 7\\]'"),
        (refused, f"{OWN}ValueError: five channels"),
    ],
)
def test_the_line_of_the_model_is_named(function: Callable[[Net, torch.Tensor], Any], advice: str) -> None:
    """Of a function that torch calls through this project, the line was one of this project's."""
    first = function.__code__.co_firstlineno
    with pytest.raises(LowerdeckError, match=rf"\(at .*test_export_errors\.py:\d+\).*\n.*{advice}") as raised:
        export(Net(function), [[1, 4]])
    line = int(str(raised.value).partition("test_export_errors.py:")[2].partition(")")[0])
    assert first < line <= first + 2


class Pixels(nn.Module):
    """Takes inputs that are not negative, and cannot be exported."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert torch.compiler.is_compiling() or bool((x >= 0).all()), "pixels are 0 to 1"
        return torch.from_numpy(np.tanh(x.numpy()))


@pytest.mark.parametrize(
    ("samples", "advice"),
    [([], OTHER), ([torch.ones(1, 4)], OTHER), ([-torch.ones(1, 4)], f"{OWN}AssertionError: pixels are 0 to 1 \\(at")],
)
def test_samples_of_the_dataset_tell_what_the_model_takes(samples: list[torch.Tensor], advice: str) -> None:
    """Random inputs are none that it takes, and it was to be corrected."""
    model, split = Pixels().eval(), [Sample(inputs=(value,), label=None, digest="0") for value in samples]
    with pytest.raises(LowerdeckError, match=rf"numpy\(\) is not supported.*\n.*{advice}"):
        export(model, [[1, 4]], answers=answers(model, cast("Any", split)))


def test_a_gpu_in_forward_is_named_with_its_line() -> None:
    """A process was to be started by 'spawn', or the message was about values of tensors."""

    class Forked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not torch.compiler.is_compiling():
                raise RuntimeError(
                    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, "
                    "you must use the 'spawn' start method"
                )
            return x + torch.ones(1, device="cuda")

    model, split = Forked().eval(), [Sample(inputs=(torch.ones(1, 4),), label=None, digest="0")]
    for given in (None, answers(model, cast("Any", split))):
        with pytest.raises(
            LowerdeckError, match=r"test_export_errors\.py:\d+\)\.?.* A model has to stay|\nA model has to stay"
        ) as caught:
            export(model, [[1, 4]], answers=given)
        assert "spawn" not in str(caught.value)


def test_an_unknown_reason_has_advice_that_is_true() -> None:
    class Unsqueezed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.unsqueeze_(1) * 2

    with pytest.raises(LowerdeckError, match=r"\ntorch\.export does not follow what the model does there"):
        export(Unsqueezed(), [[1, 4]])


class Pair:
    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


def weights_halved(net: Net, x: torch.Tensor) -> Any:
    net.layer.weight.data = net.layer.weight.data / 2
    return net.layer(x)


def tried(net: Net, x: torch.Tensor) -> Any:
    try:
        return net.layer(x[:, :2])
    except RuntimeError:
        return x


def doubled_in_a_branch(net: Net, x: torch.Tensor) -> Any:
    with torch.autocast("cpu", enabled=False):
        x = net.layer(x)
    return torch.cond(x.sum() > 0, lambda x: x * torch.tensor(2.0), lambda x: x * 1, (x,))


def multiplied_in_lower_precision(net: Net, x: torch.Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return torch.einsum("nc,cd->nd", net.layer(x), net.layer.weight).float()


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (doubled_in_a_branch, "A branch of torch.cond makes a constant"),
        (multiplied_in_lower_precision, r"^an operator in `with torch.autocast.* Cast the operands of einsum"),
        (lambda net, x: Pair(x), "in output, which is not a known type.\nA program returns tensors, alone or in"),
        (weights_halved, r"forward writes .* the data of a parameter"),
        (lambda net, x: torch.nested.nested_tensor([x]), r"_list.default \(at .*\n.* what this operator returns"),
        (tried, "forward catches an exception that a module of the model raises"),
    ],
)
def test_what_is_found_after_tracing_has_a_way_out(function: Callable[[Net, torch.Tensor], Any], advice: str) -> None:
    with pytest.raises(LowerdeckError, match=advice):
        export(Net(function), [[1, 4]])


def test_inputs_that_forward_does_not_take_are_explained_by_python() -> None:
    with pytest.raises(
        LowerdeckError, match=r"Net\.forward\(\) takes 2 positional arguments but 3 were given\. Correct"
    ):
        export(Net(refused), [[1, 4], [1, 4]])


def test_torchscript_is_refused_with_its_module() -> None:
    """`Sequential.forward() takes 2 positional arguments but 3 were given` was all that was said of a submodule."""
    scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    for model, name in ((scripted, "itself"), (nn.Sequential(nn.Linear(4, 4), scripted), "1")):
        with pytest.raises(
            LowerdeckError, match=rf"TorchScript .*: {name}\. Name a factory .* original Python modules"
        ):
            export(model, [[1, 4]])


def test_traced_modules_of_a_model_are_exported() -> None:
    x = torch.randn(1, 4)
    model = nn.Sequential(nn.Linear(4, 4), torch.jit.trace(nn.Linear(4, 4).eval(), x))  # type: ignore[no-untyped-call]
    torch.testing.assert_close(export(model, [[1, 4]]).module()(x), model(x))


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (lambda net, x: Pair(x), "in output, which is not a known type.\nA program returns tensors, alone or in"),
        (lambda net, x: x + net.missing, "unsupported operand type.*\n.*Without export, the model raises TypeError"),
        (lambda net, x: x @ torch.ones(4, 4), "same dtype.*\nInputs are float32 .*the model's weights bfloat16"),
    ],
)
def test_inputs_that_a_model_casts_are_not_blamed(function: Callable[[Any, torch.Tensor], Any], advice: str) -> None:
    class Casting(Net):
        missing = None

        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x.bfloat16())

    split: Any = [Sample(inputs=(torch.ones(1, 4),), label=None, digest="0")]
    model = Casting(function).bfloat16().eval()
    with pytest.raises(LowerdeckError, match=advice):
        export(model, [[1, 4]], answers=answers(model, split))


def test_weights_without_values_are_named() -> None:
    with torch.device("meta"):
        model = nn.Conv2d(1, 1, 1)
    with pytest.raises(LowerdeckError, match=r"Weights are on the device meta"):
        export(model, [[1, 1, 4, 4]])
