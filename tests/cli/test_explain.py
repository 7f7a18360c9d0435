"""`lowerdeck explain` on plans made by hand."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dvc.utils.serialize import dump_yaml

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import write_json
from lowerdeck.artifacts.plans import write_plan
from lowerdeck.cli.main import main
from lowerdeck.config.yaml_text import read_mapping
from lowerdeck.contracts.plan import DelegationPlan, ReasonCode
from tests.handmade_build import write_build, write_config
from tests.handmade_plan import make_reason, network, node, plan
from tests.project import SOURCES


@pytest.fixture(autouse=True)
def _in_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, given: DelegationPlan) -> str:
    write_json(Path(name), dataclasses.asdict(given))
    return name


@pytest.fixture
def explain(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """(arguments) -> what the command prints."""

    def run(*arguments: str, status: int = 0) -> str:
        assert main(["explain", *arguments]) == status
        printed = capsys.readouterr()
        return printed.err if status else printed.out

    return run


@pytest.fixture
def explain_json(explain: Callable[..., str]) -> Callable[..., Any]:
    """(arguments) -> the JSON that the command prints."""
    return lambda *arguments: json.loads(explain(*arguments, "--json"))


class TestGroups:
    def test_those_with_most_macs_come_first_each_with_its_hint(self, explain: Callable[..., str]) -> None:
        write_plan(network())
        text = explain()
        codes = re.findall(r"^(\w+): .*node", text, flags=re.MULTILINE)
        assert codes == ["neutron", "target_constraint", "no_converter", "boundary", "neighbour"]
        assert "110,592 MACs   84.4 %" in text
        assert "out_channels % num_macs != 0 with out_channels=6, num_macs=8" in text
        assert "hint: pad the 6 output channels to 8" in text

    def test_nodes_of_one_operator_and_reason_share_a_row(self, explain_json: Callable[..., Any]) -> None:
        write_plan(network())
        (row,) = next(group for group in explain_json()["groups"] if group["code"] == "no_converter")["rows"]
        assert (row["nodes"], row["modules"]) == (["hardswish", "hardswish_1"], ["body.1", "body.2"])

    def test_json_has_shares_messages_and_values(self, explain_json: Callable[..., Any]) -> None:
        write_plan(network())
        shown = explain_json()
        (row,) = shown["groups"][0]["rows"]
        assert row["macs_share"] == pytest.approx(110592 / (110592 + 12288 + 8192))
        assert row["values"] == {"out_channels": 6, "num_macs": 8}
        assert row["check"] == "ConvolutionConverter._is_supported_on_target"
        assert shown["coverage"]["undelegated_macs"] == 110592

    def test_one_reason(self, explain_json: Callable[..., Any], explain: Callable[..., str]) -> None:
        write_plan(network())
        assert [group["code"] for group in explain_json("--reason", "boundary")["groups"]] == ["boundary"]
        assert "no_converter" not in explain("--reason", "boundary")

    def test_a_reason_that_no_node_has_names_those_there_are(self, explain: Callable[..., str]) -> None:
        write_plan(network())
        assert "for others: boundary, neighbour, no_converter, target_constraint" in explain("--reason", "dtype")

    def test_an_unknown_reason_lists_all_there_are(self, explain: Callable[..., str]) -> None:
        write_plan(network())
        message = explain("--reason", "constrain", status=1)
        assert all(code.value in message for code in ReasonCode)

    def test_accepted_mismatches_are_said_first(
        self, explain: Callable[..., str], explain_json: Callable[..., Any]
    ) -> None:
        write_plan(dataclasses.replace(network(), mismatches=("partition tag0: conv is off by up to 9 LSB",)))
        said = "do not ship: the program computes something else than the quantized model: partition tag0: conv is off"
        assert explain().splitlines()[1].startswith(said)
        assert said in paths.EXPLANATION.read_text()
        assert explain_json()["mismatches"] == ["partition tag0: conv is off by up to 9 LSB"]

    def test_a_plan_that_delegates_everything_says_so(self, explain: Callable[..., str]) -> None:
        write_plan(plan(node("add", "aten.add.Tensor", partition="p")))
        first, *others = explain().splitlines()
        assert first == "neutron: 1 of 1 compute nodes delegated in 1 partition"
        assert others == [
            "",
            "Nothing is computed by portable kernels.",
            "",
            "the whole graph: build/explain.html; for Model Explorer: build/model_explorer.json",
        ]

    def test_into_a_pipe_lines_are_whole_and_without_colours(self) -> None:
        message = "a very long reason " * 20
        write_plan(plan(node("add", "aten.add.Tensor", reason=make_reason("constraint", message.strip()))))
        command = [sys.executable, "-m", "lowerdeck.cli", "explain"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=_with_project())
        assert message.strip() in done.stdout
        assert "\x1b" not in done.stdout

    def test_writes_the_page_and_the_graph_for_model_explorer(self, explain: Callable[..., str]) -> None:
        write_build(nodes=network().nodes)
        explain()
        assert "tiny on neutron_imxrt700" in paths.EXPLANATION.read_text()
        assert json.loads(paths.MODEL_EXPLORER.read_text())["graphs"]

    def test_the_page_of_a_plan_of_another_target_does_not_name_the_new_one(self, explain: Callable[..., str]) -> None:
        """After compose alone it did, and `--try` tried under the new target and compared with the old plan."""
        write_build(nodes=network().nodes)
        notice = "build/config.yaml is of another model or target than this plan; `dvc repro partition` makes its plan"
        assert notice not in explain()
        write_config(target={"name": "xnnpack_cpu", "backend": "xnnpack", "device": {}})
        assert explain().startswith(notice)
        assert "<title>neutron" in paths.EXPLANATION.read_text()
        message = explain("--try", status=1)
        assert "of another model or target than the plan" in message
        assert "`dvc repro partition`" in message

    @pytest.mark.parametrize(
        ("changed", "is_named"),
        [
            ({"target": {"name": "another"}}, False),
            ({"model": {"name": "another"}}, False),
            ({"gates": {"name": "another"}}, True),
        ],
    )
    def test_dvc_knows_what_the_plan_was_made_with(
        self, explain: Callable[..., str], changed: dict[str, Any], is_named: bool
    ) -> None:
        model = {"options": {"factory": "plugins.own:Net", "kwargs": {"eps": 1e-05, "mode": "on"}}}
        write_build(nodes=network().nodes, model=model)
        sections = read_mapping(paths.CONFIG)
        params = {
            stage: {"params": {paths.CONFIG.as_posix(): {section: sections[section]}}}
            for stage, section in (("export", "model"), ("partition", "target"))
        }
        # As DVC writes it, in YAML 1.2: `eps: 1e-05`, which is no number in YAML 1.1, and `mode: on`.
        dump_yaml("dvc.lock", {"stages": params})
        write_config(**{"model": model, **changed})
        later = paths.PLAN.stat().st_mtime_ns + 10**9
        os.utime(paths.CONFIG, ns=(later, later))
        explain()
        assert ("tiny on neutron_imxrt700" in paths.EXPLANATION.read_text()) == is_named
        assert "another on" not in paths.EXPLANATION.read_text()
        assert "on another" not in paths.EXPLANATION.read_text()

    def test_without_a_build_says_how_to_get_one(self, explain: Callable[..., str]) -> None:
        assert "dvc repro partition" in explain(status=1)

    def test_what_is_no_plan_is_refused(self, explain: Callable[..., str]) -> None:
        Path("other.json").write_text('{"nodes": 3}')
        assert "no delegation plan of this version" in explain("other.json", status=1)


class TestNode:
    def test_shows_all_fields_and_neighbours(self, explain: Callable[..., str]) -> None:
        write_plan(network())
        text = explain("--node", "conv_0")
        for expected in ("stem.conv", "net.py:7", "110,592", "dq_in float32 [1 x 8 x 16 x 16]", "conv_1 (tag0)", "pad"):
            assert expected in text

    def test_a_glob_selects_several(self, explain_json: Callable[..., Any]) -> None:
        write_plan(network())
        nodes = explain_json("--node", "conv*")["nodes"]
        assert [(entry["name"], entry["users"]) for entry in nodes] == [
            ("conv_0", ["conv_1"]),
            ("conv_1", ["hardswish"]),
        ]

    def test_a_name_that_is_not_there_gets_those_near_it(self, explain: Callable[..., str]) -> None:
        write_plan(network())
        assert "did you mean one of these: conv_1, conv_0?" in explain("--node", "conv_2", status=1)


class TestAgainst:
    def test_nodes_gained_and_lost_with_reasons(self, explain_json: Callable[..., Any]) -> None:
        excluded = make_reason("excluded", "excluded by nodes_not_to_delegate")
        before = network(
            conv_1={"partition": None, "reason": excluded}, hardswish={"partition": "tag9", "reason": None}
        )
        write_plan(network())
        shown = explain_json("--against", write("before.json", before))
        (gained,), (lost,) = shown["gained"], shown["lost"]
        assert (gained["after"]["name"], gained["before"]["reason"]["code"]) == ("conv_1", "excluded")
        assert (lost["after"]["name"], lost["after"]["reason"]["code"]) == ("hardswish", "no_converter")
        kinds = {(change["kind"], *change["before"], *change["after"]) for change in shown["partitions"]}
        assert kinds == {("gone", "tag9"), ("new", "tag0")}
        assert shown["coverage"]["before"]["delegated_macs_share"] < shown["coverage"]["after"]["delegated_macs_share"]

    def test_tags_may_differ_where_the_nodes_do_not(self, explain: Callable[..., str]) -> None:
        renamed = network(conv_1={"partition": "other0"}, linear={"partition": "other1"})
        write_plan(network())
        assert "the same nodes in the same partitions" in explain("--against", write("before.json", renamed))

    def test_merged_partitions(self, explain_json: Callable[..., Any]) -> None:
        write_plan(network(conv_1={"partition": "all"}, linear={"partition": "all"}))
        (change,) = explain_json("--against", write("before.json", network()))["partitions"]
        assert (change["kind"], change["before"], change["after"]) == ("merged", ["tag0", "tag1"], ["all"])

    def test_another_reason(self, explain_json: Callable[..., Any]) -> None:
        write_plan(network())
        before = network(hardswish={"reason": make_reason("not_quantized", "in no cluster")})
        (pair,) = explain_json("--against", write("before.json", before))["other_reason"]
        assert [pair[side]["reason"]["code"] for side in ("before", "after")] == ["not_quantized", "no_converter"]

    def test_names_that_moved_are_matched_by_module(self, explain_json: Callable[..., Any]) -> None:
        """An additional node at the start takes the name of the next, as ExecuTorch counts the nodes of an operator."""
        names = ("conv", "conv_1", "conv_2")

        def convolutions(*modules: str) -> DelegationPlan:
            return plan(
                *(
                    node(name, "aten.convolution.default", module=module, partition="tag0")
                    for name, module in zip(names, modules, strict=False)
                )
            )

        write_plan(convolutions("new", "a", "b"))
        shown = explain_json("--against", write("before.json", convolutions("a", "b")))
        assert [entry["module"] for entry in shown["only_after"]] == ["new"]
        assert shown["only_before"] == shown["gained"] == shown["lost"] == []

    def test_prints_what_changed(self, explain: Callable[..., str]) -> None:
        write_plan(network())
        text = explain("--against", write("before.json", network(hardswish_1=None, linear={"partition": None,
                       "reason": make_reason("dtype", "int64")})))  # fmt: skip
        assert "gained: delegated now, and not before (1)" in text
        assert "was dtype: int64" in text
        assert "only in the program now (1)" in text

    def test_something_else_says_what_is_taken(self, explain: Callable[..., str]) -> None:
        write_plan(network())
        assert "not a plan file" in explain("--against", "nothing.json", status=1)

    def test_does_not_go_together_with_node(self, explain: Callable[..., str]) -> None:
        assert "use one of them" in explain("--against", "x", "--node", "y", status=1)


def _with_project() -> dict[str, str]:
    import os

    return os.environ | {"PYTHONPATH": SOURCES}
