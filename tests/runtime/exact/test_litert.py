"""Whole LiteRT graphs: programs of several operators, constants, batches, and every operator row of Neutron."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lowerdeck.artifacts import paths
from lowerdeck.backends.neutron.reference.litert import operator_names
from lowerdeck.backends.neutron.twin import WRONG_KERNELS
from lowerdeck.operators.case import Case, program
from lowerdeck.operators.case import samples as samples_of
from lowerdeck.operators.cases.neutron import CASES
from lowerdeck.runtime.exact.litert import LitertProgram
from lowerdeck.runtime.exact.litert_elementwise import Clamp
from lowerdeck.runtime.exact.litert_layouts import Pad
from lowerdeck.runtime.exact.nodes import UnsupportedGraphError
from lowerdeck.steps.export import export
from tests.project import REPOSITORY
from tests.runtime.exact.litert_models import Spec, check_equal, constant, model, samples
from tests.runtime.lowering import Lowered, lower

DELEGATED = frozenset(
    row["case"]
    for row in json.loads((REPOSITORY / "docs" / "operators" / "neutron.json").read_text())["rows"]
    if row["outcome"] in ("delegated", "partly")
)
"""Rows of the page of operators whose operators reach the NPU."""


def partitions(build: Lowered) -> list[bytes]:
    """The LiteRT graphs of a build's partitions."""
    return [path.read_bytes() for path in sorted((build.folder / paths.TWINS).glob("*.tflite"))]


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [case for case in CASES if case.label in DELEGATED], ids=lambda case: f"{case.table}, {case.label}"
)
def test_operator_row(case: Case, tmp_path: Path) -> None:
    """The program of an operator's row, as the page of operators measures it."""
    exported = export(program(case, quantized=True), case.shapes)
    build = lower(exported, samples_of(case, 4), "neutron", tmp_path / "build", **case.options)
    graphs = partitions(build)
    assert graphs
    for content in graphs:
        if WRONG_KERNELS["reference"].keys() & set(operator_names(content)):
            with pytest.raises(UnsupportedGraphError, match="SUM"):
                LitertProgram(content)
            check_equal(content, kernels="optimized")
        else:
            check_equal(content)


class Network(nn.Module):
    """Padding, activations, a skip connection and a classifier, as in MobileNets."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.wise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.point = nn.Conv2d(16, 16, 1)
        self.last = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n x 3 x h x w] -> [n x 10]."""
        first = torch.clamp(self.first(x), 0, 6)
        hidden = self.point(torch.relu(self.wise(first))) + first
        result: torch.Tensor = self.last(hidden.mean((2, 3)))
        return result


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    torch.manual_seed(0)
    inputs = [(torch.randn(1, 3, 18, 22),) for _ in range(4)]
    build = lower(Network(), inputs, "neutron", tmp_path_factory.mktemp("network") / "build_folder")
    (content,) = partitions(build)
    return content


def test_a_network(network: bytes) -> None:
    (found,) = check_equal(network, batch=17)
    assert len(np.unique(found)) > 20


def test_padding_and_limits_become_part_of_convolutions(network: bytes) -> None:
    names = operator_names(network)
    assert {"PADV2", "RELU6", "RELU"} <= set(names)
    steps = LitertProgram(network)._steps
    assert not any(isinstance(bound.step, (Pad, Clamp)) for bound in steps)


def test_a_sample_does_not_depend_on_its_batch(network: bytes) -> None:
    exact = LitertProgram(network)
    (inputs,) = (torch.from_numpy(values) for values in samples(network, 5))
    whole = exact([inputs])[0]
    for row in range(5):
        assert torch.equal(exact([inputs[row : row + 1]])[0][0], whole[row])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_gives_the_same_integers(network: bytes) -> None:
    (inputs,) = (torch.from_numpy(values) for values in samples(network, 33))
    on_device = LitertProgram(network, torch.device("cuda"))([inputs])[0]
    assert torch.equal(on_device.cpu(), LitertProgram(network)([inputs])[0])


def test_intermediate_tensors_are_those_of_litert(network: bytes) -> None:
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    exact = LitertProgram(network)
    inputs = samples(network, 1)
    interpreter = Interpreter(
        model_content=network, experimental_preserve_all_tensors=True,
        experimental_op_resolver_type=OpResolverType.BUILTIN_REF,
    )  # fmt: skip
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], inputs[0][0])
    interpreter.invoke()
    computed = exact.intermediates([torch.from_numpy(values) for values in inputs])
    assert len(computed) > 5
    for index, values in computed.items():
        np.testing.assert_array_equal(values[0].numpy(), interpreter.get_tensor(index))
        assert exact.describe(index)[0] in operator_names(network)


def test_an_operator_that_is_missing_is_named_before_execution() -> None:
    content = model("CUMSUM", [Spec((4,), [0.1]), constant(np.array([0], np.int32))], Spec((4,), [0.1]))
    with pytest.raises(UnsupportedGraphError, match=r"operator CUMSUM \(tensor 't2'\): the exact executor lacks it"):
        LitertProgram(content)


def test_a_graph_that_reads_what_nothing_computes_is_damaged() -> None:
    content = bytearray(model("RELU", [Spec((4,), [0.1])], Spec((4,), [0.1])))
    from lowerdeck.runtime.exact.litert_graph import read_litert_graph

    graph = read_litert_graph(bytes(content))
    assert graph.inputs == (0,)
    # The graph's list of inputs names the output instead.
    position = next(
        place for place in range(0, len(content) - 8, 4)
        if bytes(content[place : place + 8]) == b"\1\0\0\0\0\0\0\0" and _as_input(content, place) == (1,)
    )  # fmt: skip
    content[position + 4] = 1
    with pytest.raises(ValueError, match="reads a tensor that nothing computes"):
        LitertProgram(bytes(content))


def _as_input(content: bytearray, place: int) -> Any:
    """The graph's inputs if the number after `place` were 1 and the operator still read tensor 0."""
    from lowerdeck.runtime.exact.litert_graph import read_litert_graph

    changed = bytearray(content)
    changed[place + 4] = 1
    try:
        graph = read_litert_graph(bytes(changed))
    except ValueError:
        return None
    return graph.inputs if graph.operators[0].sources == (0,) and graph.operators[0].name == "RELU" else None


@pytest.mark.slow
@pytest.mark.parametrize(("name", "size"), [("mobilenet_v2", 96), ("mobilenet_v3_small", 96), ("resnet8", 32)])
def test_whole_networks(name: str, size: int) -> None:
    import torchvision

    from lowerdeck.models.networks.resnet8 import ResNet8

    torch.manual_seed(0)
    net = ResNet8(10) if name == "resnet8" else getattr(torchvision.models, name)()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):  # statistics of real activations, so that all integers occur
            module.momentum = None
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.3)
    with torch.no_grad():
        net.train()(torch.randn(8, 3, size, size))
    with TemporaryDirectory() as folder:
        inputs = [(torch.randn(1, 3, size, size),) for _ in range(2)]
        graphs = partitions(lower(net.eval(), inputs, "neutron", Path(folder) / "build_folder"))
    assert graphs
    for content in graphs:
        (found, *_) = check_equal(content, batch=4)
        assert len(np.unique(found)) > 20
