"""The graph for Model Explorer, and what of it ExecuTorch's own function writes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lowerdeck.cli.main import main
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.explain import model_explorer
from lowerdeck.explain.graph import PlanGraph
from lowerdeck.explain.groups import groups
from lowerdeck.pages.explanation import page
from tests.conftest import Lowered
from tests.handmade_plan import network


def nodes_of(clusters: dict[str, Any]) -> dict[str, dict[str, Any]]:
    (graph,) = clusters["graphs"]
    return {node["id"]: node for node in graph["nodes"]}


def sources(node: dict[str, Any]) -> list[str]:
    return [edge["sourceNodeId"] for edge in node["incomingEdges"]]


class TestHandmade:
    def test_partitions_are_layers_and_reasons_attributes(self) -> None:
        nodes = nodes_of(model_explorer.clusters(network()))
        assert nodes["conv_1"]["namespace"] == "partition 0 (tag0)"
        assert nodes["linear"]["namespace"] == "partition 1 (tag1)"
        assert nodes["conv_0"]["namespace"] == ""
        attributes = {entry["key"]: entry["value"] for entry in nodes["conv_0"]["attrs"]}
        assert attributes["hint"] == "pad the 6 output channels to 8"
        assert attributes["reason"].startswith("target_constraint: out_channels")

    def test_inputs_and_constants_are_nodes_and_every_edge_begins_at_one(self) -> None:
        nodes = nodes_of(model_explorer.clusters(network()))
        assert {"x", "w_0", "w_1", "w_2", "output"} <= set(nodes)
        assert all(source in nodes for node in nodes.values() for source in sources(node))
        assert sources(nodes["output"]) == ["dq_out"]


class TestLowered:
    """A network that was really lowered: its plan and the edge program that the plan is of."""

    @pytest.fixture
    def small(self, lowered: Callable[[str], Lowered]) -> Lowered:
        return lowered("neutron_imxrt700")

    def test_is_what_executorch_would_write_with_the_plan_s_tags(self, small: Lowered, tmp_path: Path) -> None:
        """Needs ai-edge-model-explorer 0.1.33, which the project does not install (ADR 0028)."""
        pytest.importorskip("model_explorer.pytorch_exported_program_adater_impl", reason="no ai-edge-model-explorer")
        from executorch.devtools.visualization.visualization_utils import visualize_with_clusters

        partitions = {node.name: node.partition for node in small.plan.nodes}
        visualize_with_clusters(
            small.edge().exported_program(),
            json_file_name=str(tmp_path / "theirs.json"),
            get_node_partition_name=lambda node: partitions.get(node.name),
        )
        written = json.loads((tmp_path / "theirs.json").read_text())
        ours, theirs = model_explorer.clusters(small.plan), nodes_of(written)
        assert list(written) == list(ours)
        assert set(written["graphs"][0]) == set(ours["graphs"][0])
        assert set(nodes_of(ours)) == set(theirs)
        for name, node in nodes_of(ours).items():
            assert set(node) == set(theirs[name])
            same = ("label", "namespace", "outputsMetadata") if name != "output" else ("label",)
            assert [node[key] for key in same] == [theirs[name][key] for key in same], name
            assert set(sources(node)) == set(sources(theirs[name])), name

    def test_every_undelegated_node_is_explained_once(self, small: Lowered) -> None:
        found = groups(PlanGraph(small.plan))
        explained = [node.name for group in found for row in group.rows for node in row.nodes]
        assert sorted(explained) == sorted(node.name for node in small.plan.nodes if node.partition is None)
        assert explained, "the network's input is quantized on the CPU"
        assert all(row.hint for group in found for row in group.rows)

    def test_its_page_has_a_box_for_every_node_and_edges_between_them(self, small: Lowered) -> None:
        shown = page.render(small.plan, "small")
        assert all(f'data-key="{node.name}"' in shown for node in small.plan.nodes)
        graph = PlanGraph(small.plan)
        connected = {name for edge in graph.edges for name in edge}
        assert {node.name for node in small.plan.nodes if node.compute} <= connected
        with pytest.raises(LowerdeckError, match="did you mean"):
            graph.named(f"{small.plan.nodes[0].name}x")

    def test_the_command_reads_what_partition_wrote(
        self, small: Lowered, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(small.folder)
        assert main(["explain", "--node", "*convolution*", "--json"]) == 0
        nodes = json.loads(capsys.readouterr().out)["nodes"]
        assert len(nodes) == 2
        assert all(node["macs"] and node["source"] and node["partition"] for node in nodes)
