"""The page of `lowerdeck explain`: what it shows, that nothing in it can run but its script, and where boxes stand."""

import base64
import hashlib
import html.parser
import json
import re
from itertools import pairwise
from typing import Any

from lowerdeck.explain.graph import PlanGraph
from lowerdeck.explain.layout import MAX_PASSED, layered
from lowerdeck.explain.views import views
from lowerdeck.pages.explanation import page
from tests.handmade_plan import DEQUANTIZE, QUANTIZE, make_reason, network, node, plan, tensor


class Page(html.parser.HTMLParser):
    """Tags of a page, its scripts, and the text outside of them; every tag has to be closed."""

    VOID = ("meta", "link", "br", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "script" in self.open:
            self.scripts.append(data)
        elif "style" not in self.open:
            self.text += data + "\n"

    def boxes(self, view: str) -> dict[str, dict[str, str]]:
        """Class of the boxes of one drawing by their key."""
        found: dict[str, dict[str, str]] = {}
        inside = False
        for tag, attributes in self.tags:
            if tag == "svg":
                inside = attributes["data-view"] == view
            if inside and "data-key" in attributes:
                found[attributes["data-key"]] = attributes
        return found


def data(shown: Page) -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = json.loads(shown.scripts[0])["nodes"]
    return nodes


class TestPage:
    def test_shows_every_node_where_it_runs_and_why_not(self) -> None:
        shown = Page(page.render(network(), "net on device"))
        boxes = shown.boxes("all")
        assert set(boxes) == {each.name for each in network().nodes}
        assert boxes["conv_1"]["style"] != boxes["linear"]["style"], "partitions differ in colour"
        assert "cpu" in boxes["conv_0"]["class"]
        assert "target_constraint: stem.conv" in shown.text
        assert "pad the 6 output channels to 8" in shown.text

    def test_data_has_all_fields_of_a_node_and_its_neighbours(self) -> None:
        (node_data,) = [each for each in data(Page(page.render(network(), "net"))) if each["name"] == "conv_0"]
        fields = dict(node_data["fields"])
        assert fields["source"] == "net.py:7"
        assert fields["values"] == "out_channels=6, num_macs=8"
        assert [name for _, name in node_data["inputs"]] == ["dq_in", "w_0"]
        assert node_data["users"] == ["conv_1"]
        assert node_data["hint"] == "pad the 6 output channels to 8"

    def test_conversions_are_left_out_of_the_view_of_operators_and_edges_lead_through_them(self) -> None:
        found = {view.name: view for view in views(PlanGraph(network()))}
        assert {box.key for box in found["operators"].boxes} == {
            "conv_0", "conv_1", "hardswish", "hardswish_1", "linear",
        }  # fmt: skip
        between = plan(
            node("a", "aten.relu.default", partition="p"),
            node("q", QUANTIZE, [tensor("a", 1)], partition="p"),
            node("dq", DEQUANTIZE, [tensor("q", 1)], partition="p"),
            node("b", "aten.relu.default", [tensor("dq", 1)], partition="p"),
        )
        (operators,) = [view for view in views(PlanGraph(between)) if view.name == "operators"]
        assert operators.edges == [("a", "b")]

    def test_only_its_own_script_may_run_and_nothing_is_loaded(self) -> None:
        text = page.render(network(), "net")
        shown = Page(text)
        (policy,) = [
            attributes["content"]
            for tag, attributes in shown.tags
            if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
        ]
        digest = base64.b64encode(hashlib.sha256(shown.scripts[1].encode()).digest()).decode()
        assert policy == f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
        assert not re.search(r"(src|href|url)\s*[=(]", text)

    def test_all_text_is_escaped(self) -> None:
        evil = "</script><b onclick='x'>&\"<!--"
        reason = make_reason("constraint", evil, check=evil, values={evil: evil})
        bad = node(evil, evil, [tensor(f"{evil} input", 1)], module=evil, source=evil, reason=reason, compute=True)
        shown = Page(page.render(plan(bad, node("b", "x", partition=evil)), evil))
        assert not [tag for tag, _ in shown.tags if tag == "b" and _.get("onclick")]
        assert data(shown)[0]["name"] == evil
        assert shown.text.count(evil) > 3
        assert len(shown.scripts) == 2

    def test_the_same_plan_gives_the_same_bytes(self) -> None:
        assert page.render(network(), "net") == page.render(network(), "net")

    def test_a_plan_without_edges_or_reasons_is_a_page_too(self) -> None:
        shown = Page(page.render(plan(node("a", "aten.relu.default", partition="p")), "net"))
        assert "every node is delegated" in shown.text

    def test_shares_of_nothing_are_left_out(self) -> None:
        """`delegated MACs 100.0 % of 0` stood beside `0 of 1` nodes."""
        text = Page(page.render(plan(node("a", "aten.relu.default")), "net")).text
        assert "delegated compute nodes\n0 of 1" in text
        assert "delegated MACs" not in text
        assert "delegated parameters" not in text
        assert "delegated MACs" in Page(page.render(network(), "net")).text


class TestModules:
    def test_nodes_of_one_module_and_place_are_one_box(self) -> None:
        chain = [node("a0", "aten.relu.default", partition="p", module="m.0")]
        for index in range(1, 200):
            takes = [tensor(f"a{index - 1}", 1)]
            chain.append(node(f"a{index}", "aten.relu.default", takes, partition="p", module=f"m{index // 20}.{index}"))
        (modules,) = [view for view in views(PlanGraph(plan(*chain))) if view.name == "modules"]
        assert [box.title for box in modules.boxes] == ["m"] + [f"m{index}" for index in range(10)]
        assert [len(box.nodes) for box in modules.boxes] == [1, 19] + [20] * 9

    def test_groups_make_no_circle(self) -> None:
        """m's second node takes from the CPU, which takes from m's first: one box for m would be a circle."""
        parts = plan(
            node("a", "aten.relu.default", partition="p", module="m"),
            node("b", "aten.exp.default", [tensor("a", 1)], module="m", reason=make_reason("no_converter")),
            node("c", "aten.add.Tensor", [tensor("a", 1), tensor("b", 1)], partition="p", module="m"),
            node("d", "aten.add.Tensor", [tensor("c", 1), tensor("a", 1)], partition="p", module="m"),
        )
        (modules,) = [view for view in views(PlanGraph(parts)) if view.name == "modules"]
        assert [[each.name for each in box.nodes] for box in modules.boxes] == [["a"], ["b"], ["c", "d"]]
        place = {box.key: index for index, box in enumerate(modules.boxes)}
        assert all(place[producer] < place[consumer] for producer, consumer in modules.edges)


class TestLayout:
    EDGES = (("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("a", "d"), ("e", "d"))

    def test_takers_stand_below_givers(self) -> None:
        drawn = layered(["a", "b", "c", "e", "d"], self.EDGES)
        assert all(drawn.places[producer][1] < drawn.places[consumer][1] for producer, consumer in self.EDGES)
        assert drawn.places["e"][1] == drawn.places["d"][1] - 1, "what takes from nothing stands by its taker"

    def test_boxes_and_passing_edges_keep_apart(self) -> None:
        drawn = layered(["a", "b", "c", "e", "d"], self.EDGES)
        by_layer: dict[int, list[tuple[float, float]]] = {}
        for place, layer in drawn.places.values():
            by_layer.setdefault(layer, []).append((place, 1.0))
        for route in drawn.routes.values():
            for place, layer in route[1:-1]:
                by_layer[layer].append((place, 0.35))
        for row in by_layer.values():
            for (left, width), (right, other) in pairwise(sorted(row)):
                assert right - left >= (width + other) / 2 - 0.01

    def test_a_chain_is_straight(self) -> None:
        names = [f"n{index}" for index in range(50)]
        drawn = layered(names, list(pairwise(names)))
        assert {place for place, _ in drawn.places.values()} == {0.0}
        assert (drawn.width, drawn.num_layers) == (1.0, 50)

    def test_an_unrolled_loop_does_not_grow_with_the_square_of_its_steps(self) -> None:
        """Every step takes its element from the first node: 32 MB for 200 steps of an RNN."""

        def size(steps: int) -> int:
            ops = [node("all", "aten.linear.default", partition="p")]
            for step in range(steps):
                takes = [tensor("all", 8)] + ([tensor(f"n{step - 1}", 8)] if step else [])
                ops.append(node(f"n{step}", "aten.add.Tensor", takes, partition="p"))
            text = page.render(plan(*ops), "loop")
            assert not steps or f'data-from="all" data-to="n{steps - 1}"' in text
            return len(text)

        assert size(400) - size(200) < 1.2 * (size(200) - size(0))

    def test_a_long_edge_bends_into_the_gap_beside_the_boxes(self) -> None:
        names = [f"n{index}" for index in range(MAX_PASSED + 3)]
        drawn = layered(names, [*pairwise(names), (names[0], names[-1])])
        assert drawn.routes[names[0], names[-1]] == (drawn.places[names[0]], drawn.places[names[-1]])
        assert drawn.width == 1.0

    def test_routes_begin_and_end_at_their_boxes(self) -> None:
        drawn = layered(["a", "b", "c", "e", "d"], self.EDGES)
        for (producer, consumer), route in drawn.routes.items():
            assert (route[0], route[-1]) == (drawn.places[producer], drawn.places[consumer])
            assert [layer for _, layer in route] == list(range(route[0][1], route[-1][1] + 1))
