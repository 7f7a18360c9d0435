"""Hints: what fixes a refusal, computed from the values in it, and that the checks they are for still exist."""

import dataclasses
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import executorch.backends
import pytest

from lowerdeck.contracts.plan import PlannedNode, Reason, ReasonCode
from lowerdeck.explain.constraints import ethos_u, neutron, xnnpack
from lowerdeck.explain.graph import PlanGraph
from lowerdeck.explain.groups import MEANINGS
from lowerdeck.explain.hints import hint
from lowerdeck.explain.undelegated_node import Rule
from tests.handmade_plan import DEQUANTIZE, QUANTIZE, make_reason, network, node, plan, tensor

(BACKENDS,) = executorch.backends.__path__


def hint_for(
    backend: str,
    reason: Reason,
    operator: str = "aten.op.default",
    shape: Sequence[int] = (1, 8, 16, 16),
    others: Iterable[PlannedNode] = (),
) -> str:
    """The hint for one node among `others`."""
    refused = node("refused", operator, [tensor("x", *shape)], [tensor("refused", *shape)], reason=reason)
    return hint(refused, PlanGraph(plan(refused, *others, backend=backend)))


CONVOLUTION = "ConvolutionConverter._is_supported_on_target_regular_conv"


@pytest.mark.parametrize(
    ("backend", "reason", "expected"),
    [
        (
            "neutron",
            make_reason(
                "constraint", "groups=4, out_channels=6: not divisible", values={"groups": 4, "out_channels": 6}
            ),
            "pad the 6 output channels to 8",
        ),
        (
            "neutron",
            make_reason(
                "target_constraint",
                "kernel_h * kernel_w * ConvolutionConverter._round_ceil(inp_channels, num_macs) > 65535",
                check=CONVOLUTION,
                values={"kernel_h": 7, "kernel_w": 7, "inp_channels": 2048, "num_macs": 8},
            ),
            "at most 1336 input channels fit, not 2048: split the convolution into 2",
        ),
        (
            "neutron",
            make_reason(
                "constraint",
                "dilation != (1, 1)",
                check="MaxPool2DWithIndicesConverter._is_supported_in_IR",
                values={"dilation": [1, 1]},
            ),
            "leave dilation and ceil_mode at their defaults",
        ),
        (
            "neutron",
            make_reason(
                "constraint",
                "dilation != (1, 1)",
                check="MaxPool2DWithIndicesConverter._is_supported_in_IR",
                values={"dilation": [2, 2]},
            ),
            "pool with a dilation of 1",
        ),
        (
            "neutron",
            make_reason(
                "target_constraint",
                "channels > 2040",
                check="SoftmaxConverter._is_supported_on_target",
                values={"channels": 3000, "total_spatial_size": 1},
            ),
            "at most 2040 channels",
        ),
        (
            "neutron",
            make_reason(
                "target_constraint",
                "h_scale not in supported_scales",
                check="UpsampleNearest2DConverter._is_supported_on_target",
                values={"h_scale": 1.5, "w_scale": 1.5},
            ),
            "by 1, 2, 4 or 8, not by 1.5",
        ),
        (
            "ethos_u",
            make_reason("target_constraint", "Avgpool2d needs N==1, got N==4"),
            "export with a batch of 1, not 4",
        ),
        (
            "ethos_u",
            make_reason("target_constraint", "Maxpool2d needs stride <= 3, got (4, 4)"),
            "a stride of at most 3, twice where more is needed; or build for an Ethos-U85",
        ),
        ("ethos_u", make_reason("target_constraint", "Op is not supported on U55."), "target: ethos_u85_256"),
        ("xnnpack", make_reason("constraint", "ceil mode is not supported"), "set ceil_mode=False"),
        (
            "xnnpack",
            make_reason("constraint", "dim must be the last dim, got dim = 1 for tensor of rank 4"),
            "to the end (dim=3)",
        ),
        ("xnnpack", make_reason("dynamic_shape", "dynamic output sizes"), "model.dynamic_shapes: []"),
        (
            "xnnpack",
            make_reason("excluded", "excluded by x", values={"option": "excluded_configs", "config": "AddConfig"}),
            "take AddConfig out of `target.options.excluded_configs`",
        ),
        (
            "xnnpack",
            make_reason("excluded", "left out", values={"option": "additional_configs", "config": "EluConfig"}),
            "`target.options.additional_configs: [EluConfig]` delegates it",
        ),
        ("neutron", make_reason("no_op_partition", "empty"), "allow_no_op_partitions: true"),
        ("someone_elses", make_reason("constraint", "no", values={"stride": 3}), "change stride in the model"),
        (
            *("someone_elses", make_reason("constraint", "no", values={"args": "[x, 0, 0, 7, 2]", "len(args)": 5})),
            "change its arguments in the model",
        ),
    ],
)
def test_a_refusal_is_fixed_by_its_values(backend: str, reason: Reason, expected: str) -> None:
    shape = (4, 8, 16, 16) if "N==4" in reason.message else (1, 8, 16, 16)
    assert expected in hint_for(backend, reason, shape=shape)


@pytest.mark.parametrize("code", list(ReasonCode))
def test_every_code_has_a_meaning_and_is_answered(code: ReasonCode) -> None:
    assert MEANINGS[code]
    said = hint_for("neutron", make_reason(code.value, "words"), shape=(1, 8))
    assert bool(said) is (code not in (ReasonCode.UNKNOWN, ReasonCode.NEIGHBOUR)), "a neighbour's other is missing here"


def test_replacements_are_for_what_neutron_lacks_and_lead_to_what_it_has() -> None:
    """Read from the table of converters, whose module cannot be imported without NXP's SDK."""
    table = Path(BACKENDS, "nxp", "neutron_partitioner.py").read_text()
    for lacking, (_, has) in neutron.REPLACEMENTS.items():
        assert f"exir_ops.edge.{lacking}:" not in table
        assert f"exir_ops.edge.{has}:" in table


def test_replacements_are_for_what_xnnpack_lacks_and_lead_to_what_it_has() -> None:
    configs = "\n".join(path.read_text() for path in Path(BACKENDS, "xnnpack", "partition", "config").glob("*.py"))
    for lacking, (_, has) in xnnpack.REPLACEMENTS.items():
        assert f'target_name = "{lacking.removeprefix("aten.")}"' not in configs
        assert f'target_name = "{has}"' in configs
        assert "in its place, which the backend has" in hint_for("xnnpack", make_reason("no_converter", "no"), lacking)


def test_a_program_without_quantization_gets_that_hint() -> None:
    assert "`quantization: int8`" in hint_for("neutron", make_reason("not_quantized", "in no cluster"))


def test_a_hard_sigmoid_is_recognized_by_what_it_was_decomposed_into() -> None:
    refused = make_reason("not_quantized", "in no cluster")
    names = {
        "aten.add.Tensor": refused,
        "aten.clamp.default": refused,
        "aten.div.Tensor": make_reason("no_converter", "no"),
    }
    nodes = [node("dq", DEQUANTIZE, [tensor("x", 1)], partition="p")]
    for operator, reason in names.items():
        nodes.append(node(operator.split(".")[1], operator, [tensor(nodes[-1].name, 1)], reason=reason))
    nodes.append(node("q", QUANTIZE, [tensor("div", 1)], partition="p"))
    graph = PlanGraph(plan(*nodes))
    hints = {each.name: hint(each, graph) for each in nodes}
    assert all("use nn.Sigmoid" in hints[name] for name in ("add", "clamp", "div"))
    assert hints["dq"] == ""


def test_floats_between_two_nodes_name_what_the_backend_lacks() -> None:
    nodes = [
        node("q", QUANTIZE, [tensor("x", 1)], partition="p"),
        node("exp", "aten.exp.default", [tensor("q", 1)], reason=make_reason("not_quantized", "in no cluster")),
        node("erf", "aten.erf.default", [tensor("exp", 1)], reason=make_reason("no_converter", "none")),
    ]
    said = hint(nodes[1], PlanGraph(plan(*nodes)))
    assert said.startswith("computes in floats together with aten.erf.default, which the backend does not have")


def test_a_neighbour_has_the_hint_of_the_node_it_follows() -> None:
    made = network()
    graph = PlanGraph(made)
    assert hint(graph.nodes["dq_in"], graph) == "goes with conv_0: pad the 6 output channels to 8"


def test_neighbours_in_a_circle_end() -> None:
    nodes = [
        node("a", "getitem", reason=make_reason("neighbour", "with b", node="b")),
        node("b", "getitem", [tensor("a", 1)], reason=make_reason("neighbour", "with a", node="a")),
    ]
    graph = PlanGraph(plan(*nodes))
    assert [hint(each, graph) for each in nodes] == ["goes with b", "goes with a"]


def test_the_io_boundary_names_the_option_for_integers() -> None:
    made = network()
    graph = PlanGraph(made)
    assert "quantized_inputs: true" in hint(graph.nodes["q_in"], graph)
    assert "quantized_outputs: true" in hint(graph.nodes["dq_out"], graph)


@pytest.mark.parametrize(
    ("rules", "folder"),
    [
        (ethos_u.RULES, "arm"),
        (neutron.RULES, "nxp/backend"),
        (xnnpack.RULES, "xnnpack/partition"),
    ],
)
def test_every_rule_is_for_a_check_of_the_installed_executorch(rules: Sequence[Rule], folder: str) -> None:
    files = sorted(Path(BACKENDS, folder).rglob("*.py"))
    source = "\n".join(" ".join(re.sub(r'"\s*\n\s*f?"', "", file.read_text()).split()) for file in files)
    assert [rule.pattern.pattern for rule in rules if not rule.pattern.search(source)] == []


def test_hints_are_given_for_delegated_nodes_to_nobody() -> None:
    made = network()
    delegated = [each for each in made.nodes if each.partition is not None]
    assert [hint(each, PlanGraph(made)) for each in delegated] == ["", ""]
    assert dataclasses.replace(delegated[0], reason=None) == delegated[0]
