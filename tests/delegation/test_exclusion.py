"""lowerdeck.delegation.exclusion: patterns name exactly what they say, and say so where they name nothing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.delegation.exclusion import Exclusion, excluded_by, mark
from lowerdeck.steps.export import export
from tests.networks import Called


class Blocks(nn.Module):
    """Additions beside a linear layer, in modules whose names begin alike."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.layer11 = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.layer1(x)
        scores: torch.Tensor = torch.add(x, self.layer11(x))
        return scores


@pytest.fixture(scope="module")
def program() -> torch.export.ExportedProgram:
    """Linear layers decomposed, as in an edge program: addmm and permute."""
    decomposed: torch.export.ExportedProgram = export(Blocks(), [[1, 8]]).run_decompositions()
    return decomposed


def named(program: torch.export.ExportedProgram, **patterns: list[str]) -> dict[str, str]:
    """Node -> what excludes it."""
    mark(program.graph, Exclusion(**patterns))
    return {node.name: found for node in program.graph.nodes if (found := excluded_by(node)) is not None}


@pytest.mark.parametrize("pattern", ["aten::add", "aten.add", "aten.add.Tensor", "aten::add.Tensor"])
def test_an_operator_is_matched_by_its_whole_name(program: torch.export.ExportedProgram, pattern: str) -> None:
    assert any(node.name.startswith("addmm") for node in program.graph.nodes)
    found = named(program, operators_not_to_delegate=[pattern])
    assert found == dict.fromkeys(["add", "add_1"], f"operators_not_to_delegate: {pattern}")


def test_an_operator_that_was_decomposed_names_its_parts(program: torch.export.ExportedProgram) -> None:
    assert not any("linear" in str(node.target) for node in program.graph.nodes)
    found = named(program, operators_not_to_delegate=["aten::linear"])
    assert set(found) == {"permute", "addmm", "permute_1", "addmm_1"}


def test_an_operator_of_the_program_itself_goes_before_what_was_decomposed(
    program: torch.export.ExportedProgram,
) -> None:
    assert set(named(program, operators_not_to_delegate=["aten.permute"])) == {"permute", "permute_1"}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("layer1", {"permute", "addmm", "relu"}),
        ("layer1.*", {"permute", "addmm", "relu"}),
        ("layer1.1", {"relu"}),
        ("layer*.1", {"relu", "relu_1"}),
    ],
)
def test_a_module_is_matched_with_everything_in_it(
    program: torch.export.ExportedProgram, pattern: str, expected: set[str]
) -> None:
    assert set(named(program, modules_not_to_delegate=[pattern])) == expected


def test_nodes_are_matched_by_globs_on_their_names(program: torch.export.ExportedProgram) -> None:
    assert set(named(program, nodes_not_to_delegate=["relu*"])) == {"relu", "relu_1"}
    assert set(named(program, nodes_not_to_delegate=["add"])) == {"add"}


def test_the_first_option_that_names_a_node_is_given_as_its_reason(program: torch.export.ExportedProgram) -> None:
    found = named(program, operators_not_to_delegate=["aten::relu"], modules_not_to_delegate=["layer1"])
    assert found["relu"] == "operators_not_to_delegate: aten::relu"
    assert found["addmm"] == "modules_not_to_delegate: layer1"


def test_patterns_that_name_nothing_are_an_error_with_near_names(program: torch.export.ExportedProgram) -> None:
    with pytest.raises(LowerdeckError) as caught:
        named(
            program,
            operators_not_to_delegate=["aten::ad", "aten::relu", "aten::liner"],
            modules_not_to_delegate=["layr1"],
            nodes_not_to_delegate=["addmn_1"],
        )
    message = str(caught.value)
    assert "target.options.operators_not_to_delegate: 'aten::ad' names nothing" in message
    assert "Did you mean aten.add.Tensor" in message
    assert "Did you mean aten.linear.default" in message
    assert "target.options.modules_not_to_delegate: 'layr1' names nothing" in message
    assert "Did you mean layer1" in message
    assert "target.options.nodes_not_to_delegate: 'addmn_1' names nothing" in message
    assert "Did you mean addmm_1" in message
    assert "'aten::relu'" not in message


def test_only_what_computes_can_be_named(program: torch.export.ExportedProgram) -> None:
    with pytest.raises(LowerdeckError, match="'x' names nothing that computes"):
        named(program, nodes_not_to_delegate=["x"])


def test_nothing_named_is_no_exclusion() -> None:
    assert not Exclusion().excludes_any
    assert Exclusion(nodes_not_to_delegate=["a"]).excludes_any


@pytest.mark.parametrize(
    ("option", "pattern", "says"),
    [
        ("operators_not_to_delegate", "add", "write `aten::add`"),
        ("operators_not_to_delegate", "aten::add*", "take globs"),
        ("operators_not_to_delegate", "quantized_decomposed::quantize_per_tensor", "name those"),
        ("modules_not_to_delegate", "layer 1", "write `layer3.*`"),
        ("nodes_not_to_delegate", "", "write `layer3.*`"),
    ],
)
def test_malformed_patterns_are_found_without_a_program(option: str, pattern: str, says: str) -> None:
    found = list(Exclusion(**{option: [pattern]}).exclusion_problems())
    assert [key for key, _ in found] == [option]
    assert repr(pattern) in found[0][1]
    assert says in found[0][1]


def test_well_formed_patterns_are_no_problem() -> None:
    exclusion = Exclusion(
        operators_not_to_delegate=["aten::add", "aten.add.Tensor", "dim_order_ops::_clone_dim_order"],
        modules_not_to_delegate=["layer3.*", "features.[0-3]"],
        nodes_not_to_delegate=["aten_add_tensor_?"],
    )
    assert list(exclusion.exclusion_problems()) == []


def fail(node: torch.fx.Node) -> None:
    raise IndexError(f"no argument {len(node.args)}")


@pytest.mark.parametrize(
    ("target", "check"),
    [
        ("neutron_imxrt700", None),
        (
            "ethos_u55_128",
            "executorch.backends.arm.operator_support.pool_2d_support.AvgPool2dSupported.is_node_tosa_supported",
        ),
        (
            "xnnpack_cpu",
            "executorch.backends.xnnpack.partition.config.generic_node_configs.AvgPoolingConfig.check_constraints",
        ),
    ],
)
def test_an_operator_that_a_partitioner_fails_on_stays_on_the_cpu(
    target: str, check: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neutron's fault is a real one, which the quantizer avoids: a check reads a stride that poolings may leave out."""
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), Called(lambda x: F.avg_pool2d(x, 3)), nn.Conv2d(8, 4, 1))
    network.eval()
    backend = create(target)
    samples = [(torch.randn(1, 3, 11, 11, generator=torch.Generator().manual_seed(seed)),) for seed in range(6)]
    backend.create_quantizer(QuantizationScheme(name="int8"))  # its modules need the converter
    if check is None:
        monkeypatch.setattr("lowerdeck.backends.neutron.quantizer._state_strides", lambda module: None)
    else:
        monkeypatch.setattr(check, lambda support, node, *others: fail(node))
    verdict, detail = lowered(network, samples, backend)
    assert verdict == "right", detail
    assert "stays on the CPU: aten_avg_pool2d_default" in detail
    assert "the backend's partitioner fails on it: " in detail
    assert "IndexError" in detail
