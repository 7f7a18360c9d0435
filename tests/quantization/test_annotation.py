"""lowerdeck.quantization.annotation: modules that stay float or have another scheme, and observers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.in_turns import create
from lowerdeck.contracts.backends import Backend
from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.contracts.quantization import ModuleRule, ObserverChoice, QuantizationScheme
from lowerdeck.quantization.annotation import SchemeQuantizer, scheme_quantizer
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.export import export
from lowerdeck.steps.quantize import quantize
from tests.conftest import Lowered

ONE_OF_EACH = ("ethos_u55_128", "neutron_imxrt700", "xnnpack_cpu")
Quantized = Callable[..., torch.export.ExportedProgram]


@pytest.fixture(scope="module")
def quantized(lowered: Callable[[str], Lowered]) -> Quantized:
    """(target, fields of the scheme) -> the small network, quantized at the first call."""
    made: dict[tuple[str, str], torch.export.ExportedProgram] = {}

    def get(target: str, **fields: Any) -> torch.export.ExportedProgram:
        build = lowered(target)
        scheme = QuantizationScheme(**({"name": "int8"} | fields))
        if (target, repr(scheme)) not in made:
            program = calibrated_and_converted(build.backend(), scheme, build.exported, build.samples)
            made[target, repr(scheme)] = program
        return made[target, repr(scheme)]

    return get


def calibrated_and_converted(
    backend: Backend,
    scheme: QuantizationScheme,
    program: Callable[[], torch.export.ExportedProgram],
    samples: Sequence[tuple[torch.Tensor, ...]],
) -> torch.export.ExportedProgram:
    observing, converting = scheme_quantizer(backend, scheme), scheme_quantizer(backend, scheme)
    assert observing is not None
    assert converting is not None
    return quantize(program(), converting, calibrate(program(), observing, samples, len(samples)))[0]


def floats(*globs: str) -> dict[str, Any]:
    return {"rules": (ModuleRule(modules=globs),)}


def quantized_inputs(program: torch.export.ExportedProgram, operator: str) -> list[list[bool]]:
    """For every node of an operator, whether its inputs come out of integers, biases aside."""
    nodes = [node for node in program.graph.nodes if str(node.target).startswith(operator)]
    return [["dequantize" in source.name for source in node.all_input_nodes[:2]] for node in nodes]


def scales(program: torch.export.ExportedProgram) -> list[float]:
    """Of activations, in the order of the program."""
    quantizes = [node for node in program.graph.nodes if "quantized_decomposed.quantize_per_tensor" in str(node.target)]
    return [float(node.args[1]) for node in quantizes]


def weights(program: torch.export.ExportedProgram) -> list[torch.Tensor]:
    stored = [*program.state_dict.values(), *program.constants.values()]
    return [tensor for tensor in stored if isinstance(tensor, torch.Tensor) and tensor.dtype == torch.int8]


@pytest.mark.parametrize("target", ONE_OF_EACH)
def test_nothing_chosen_is_the_backends_own_quantizer(lowered: Callable[[str], Lowered], target: str) -> None:
    backend = lowered(target).backend()
    assert not isinstance(scheme_quantizer(backend, QuantizationScheme(name="int8")), SchemeQuantizer)


@pytest.mark.parametrize("target", ONE_OF_EACH)
def test_a_module_stays_float_between_quantized_ones(quantized: Quantized, target: str) -> None:
    program = quantized(target, **floats("body"))
    stem, body = quantized_inputs(program, "aten.conv2d")
    assert all(stem)
    assert body == [True, False, False][: len(body)]  # it is given what the stem quantized, and its own weights
    assert all(
        all(inputs) for operator in ("aten.add", "aten.linear") for inputs in quantized_inputs(program, operator)
    )


@pytest.mark.parametrize("target", ONE_OF_EACH)
def test_the_models_input_and_output_stay_float_beside_float_modules(quantized: Quantized, target: str) -> None:
    first = quantized(target, **floats("stem.*"))
    assert not any(quantized_inputs(first, "aten.conv2d")[0])
    (placeholder,) = (node for node in first.graph.nodes if node.name == "x")
    assert [str(user.target) for user in placeholder.users] == ["aten.conv2d.default"]
    last = quantized(target, **floats("head"))
    assert "linear" in str(last.graph.output_node().args[0])


@pytest.mark.parametrize("target", ONE_OF_EACH)
def test_what_is_not_named_is_quantized_as_before(
    lowered: Callable[[str], Lowered], quantized: Quantized, target: str
) -> None:
    whole, without_head = scales(lowered(target).quantized()), scales(quantized(target, **floats("head")))
    assert without_head == whole[: len(without_head)]


class Joined(nn.Module):
    """A concatenation and a pooling, which share quantizations with what is before them: [1 x 8 x 8 x 8] -> same."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right, self.last = (nn.Conv2d(8, 8, 1) for _ in range(3))
        self.pool = nn.MaxPool2d(3, stride=1, padding=1)
        self.mixed = nn.Conv2d(16, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([self.pool(F.relu(self.left(x))), self.right(x)], dim=1)
        scores: torch.Tensor = self.last(self.mixed(joined))
        return scores


@pytest.mark.parametrize("target", ONE_OF_EACH)
@pytest.mark.parametrize(
    "globs", [["left"], ["right"], ["left", "right"], ["pool"], ["mixed"], ["pool", "last"]], ids=str
)
def test_quantizations_are_not_shared_with_float_modules(
    lowered: Callable[[str], Lowered], target: str, globs: list[str]
) -> None:
    generator = torch.Generator().manual_seed(3)
    samples = [(torch.randn(1, 8, 8, 8, generator=generator),) for _ in range(2)]
    network = Joined().eval()
    scheme = QuantizationScheme(name="int8", **floats(*globs))
    program = calibrated_and_converted(
        lowered(target).backend(), scheme, lambda: export(network, [[1, 8, 8, 8]]), samples
    )
    convolutions = dict(zip(("left", "right", "mixed", "last"), quantized_inputs(program, "aten.conv2d"), strict=True))
    for name, inputs in convolutions.items():
        assert inputs[1] is (name not in globs), (name, inputs)
        assert all(inputs) or name in globs
    with torch.no_grad():
        expected, found = network(*samples[0]), program.module()(*samples[0])
    assert (expected - found).abs().max() < 0.1 * expected.abs().max()


def test_types_name_modules_by_class(quantized: Quantized) -> None:
    program = quantized("xnnpack_cpu", rules=(ModuleRule(types=("torch.nn.Linear",)),))
    assert quantized_inputs(program, "aten.linear") == [[True, False]]
    assert all(map(all, quantized_inputs(program, "aten.conv2d")))


def test_an_activation_function_goes_with_its_module(quantized: Quantized) -> None:
    # XNNPACK computes stem.0 and stem.2 together: with an own granularity for one of them alone they would be float.
    rule = ModuleRule(modules=("stem.0",), scheme="int8", weight_granularity="per_tensor")
    program = quantized("xnnpack_cpu", rules=(rule,))
    stem, body = (node.all_input_nodes[1].target for node in program.graph.nodes if "conv2d" in str(node.target))
    assert "per_tensor" in str(stem)
    assert "per_channel" in str(body)


def test_of_several_rules_the_last_one_holds(quantized: Quantized) -> None:
    rules = (
        ModuleRule(modules=("*",), scheme="int8", weight_granularity="per_tensor"),
        ModuleRule(modules=("body",)),
        ModuleRule(modules=("body.*",), scheme="int8", weight_granularity="per_channel"),
    )
    program = quantized("xnnpack_cpu", rules=rules)
    kinds = [str(node.all_input_nodes[1].target) for node in program.graph.nodes if "conv2d" in str(node.target)]
    assert ["per_channel" in kind for kind in kinds] == [False, True]


@pytest.mark.parametrize(
    ("rule", "parts"),
    [
        (ModuleRule(modules=("stme",)), ("keep_float", "a path like 'stme'", "Did you mean stem")),
        (ModuleRule(modules=("stem.7",), scheme="int8"), ("quantization.rules.0", "stem.7", "stem.0")),
        (ModuleRule(types=("torch.nn.Conv3d",), scheme="int8"), ("class like 'torch.nn.Conv3d'", "conv.Conv2d")),
    ],
    ids=["path", "number", "class"],
)
def test_a_pattern_that_names_nothing_is_refused_with_what_is_near(
    lowered: Callable[[str], Lowered], rule: ModuleRule, parts: tuple[str, ...]
) -> None:
    build = lowered("xnnpack_cpu")
    quantizer = scheme_quantizer(build.backend(), QuantizationScheme(name="int8", rules=(rule,)))
    assert quantizer is not None
    with pytest.raises(ConfigurationError) as caught:
        calibrate(build.exported(), quantizer, build.samples, 1)
    for part in parts:
        assert part in str(caught.value)


OBSERVERS = [
    ObserverChoice(kind="histogram", options={"bins": 32}),
    ObserverChoice(kind="min_max"),
    ObserverChoice(kind="moving_average_min_max", options={"averaging_constant": 0.5}),
]


@pytest.mark.parametrize("target", ONE_OF_EACH)
def test_every_observer_of_activations_has_scales_of_its_own(
    lowered: Callable[[str], Lowered], quantized: Quantized, target: str
) -> None:
    found = [scales(quantized(target, activation_observer=choice)) for choice in OBSERVERS]
    found.append(scales(lowered(target).quantized()))
    assert all(len(each) == len(found[0]) for each in found)
    assert len({tuple(each) for each in found}) == len(found)


def test_the_range_of_min_max_is_that_of_the_samples(lowered: Callable[[str], Lowered], quantized: Quantized) -> None:
    build = lowered("xnnpack_cpu")
    values = torch.cat([sample[0] for sample in build.samples])
    first = scales(quantized("xnnpack_cpu", activation_observer=ObserverChoice(kind="min_max")))[0]
    assert first == pytest.approx(float(values.max() - values.min()) / 255, rel=1e-6)


def test_observers_of_weights_change_weights_and_nothing_else(quantized: Quantized) -> None:
    chosen = {
        kind: quantized("xnnpack_cpu", weight_granularity="per_tensor", weight_observer=ObserverChoice(kind=kind))
        for kind in ("backend_default", "min_max", "histogram")
    }
    for narrow, same in zip(weights(chosen["min_max"]), weights(chosen["backend_default"]), strict=True):
        assert torch.equal(narrow, same)
    pairs = list(zip(weights(chosen["histogram"]), weights(chosen["min_max"]), strict=True))
    assert any(not torch.equal(clipped, whole) for clipped, whole in pairs)
    assert scales(chosen["histogram"])[0] == scales(chosen["min_max"])[0]


def test_observers_of_weights_are_per_channel_where_weights_are(
    lowered: Callable[[str], Lowered], quantized: Quantized
) -> None:
    program = quantized("xnnpack_cpu", weight_observer=ObserverChoice(kind="min_max"))
    for found, expected in zip(weights(program), weights(lowered("xnnpack_cpu").quantized()), strict=True):
        assert torch.equal(found, expected)


class Reshaped(nn.Module):
    """A convolution whose weights a linear layer computes, and a reshaping of its result."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weights, self.head = nn.Linear(8, 4 * 3 * 9), nn.Linear(4 * 6 * 6, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(F.conv2d(x, self.weights(y).view(4, 3, 3, 3)).flatten(1))
        return scores


@pytest.mark.parametrize("kind", ["backend_default", "histogram", "min_max", "moving_average_min_max"])
@pytest.mark.parametrize("target", ONE_OF_EACH)
def test_a_convolution_whose_weights_are_computed_is_quantized_with_every_observer(target: str, kind: str) -> None:
    """A reshaping of its result, float on XNNPACK, ended in a KeyError; so did Neutron's scales per channel."""
    generator = torch.Generator().manual_seed(1)
    given = tuple(torch.randn(*size, generator=generator) for size in ((1, 3, 8, 8), (1, 8)))
    scheme = QuantizationScheme(name="int8", activation_observer=ObserverChoice(kind=kind))
    network = Reshaped().eval()
    program = calibrated_and_converted(create(target), scheme, lambda: export(network, [[1, 3, 8, 8], [1, 8]]), [given])
    wanted = network(*given)
    assert (program.module(check_guards=False)(*given) - wanted).abs().max() < 0.1 * wanted.abs().max()
