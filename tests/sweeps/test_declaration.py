"""What stages dvc.yaml declares for sweeps, and how typed overrides become points."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.sweeps import arguments, hydra_multirun
from lowerdeck.sweeps.declaration import read_stages
from tests.project import REPOSITORY

STAGES = {stage.name: stage for stage in read_stages(REPOSITORY / "dvc.yaml")}


def test_stages_are_those_of_dvc_yaml_in_an_order_that_works() -> None:
    declared = yaml.safe_load((REPOSITORY / "dvc.yaml").read_text())["stages"]
    assert set(STAGES) == set(declared)
    made: set[str] = set()
    for stage in STAGES.values():
        assert made.issuperset(stage.inputs)
        made |= set(stage.outputs)
        assert sorted([*stage.sources, *stage.inputs]) == sorted(declared[stage.name].get("deps", ()))
        assert declared[stage.name]["cmd"] == f"exec python -m {stage.module}"


def test_stages_depend_on_their_sections_and_on_the_code_that_they_can_reach() -> None:
    assert STAGES["export"].params == {
        "build/code.json": ("export",),
        "build/config.yaml": ("build.seed", "build.num_threads", "model", "dataset", "task"),
    }
    for stage in STAGES.values():
        assert stage.name == "compose" or stage.params["build/code.json"] == (stage.name,)
        assert stage.name == "compose" or not [path for path in stage.sources if not path.startswith("data/")]


def test_params_of_other_files_are_refused(tmp_path: Path) -> None:
    stage = {"cmd": "python -m stages.a", "params": [{"other.yaml": ["x"]}], "outs": ["x"]}
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"a": stage}}))
    with pytest.raises(LowerdeckError, match=r"params of another file than build/config\.yaml and build/code\.json"):
        read_stages(tmp_path / "dvc.yaml")


def test_stages_that_wait_for_each_other_are_refused(tmp_path: Path) -> None:
    stage = {"cmd": "python -m stages.a"}
    stages = {"a": stage | {"deps": ["y"], "outs": ["x"]}, "b": stage | {"deps": ["x"], "outs": ["y"]}}
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
    with pytest.raises(LowerdeckError, match="a, b wait for each other"):
        read_stages(tmp_path / "dvc.yaml")


BASE = {"target": "neutron_imxrt700", "plugins": [], "overrides": {"evaluation": {"max_samples": 4}}}


def test_points_are_the_product_and_become_params_yaml() -> None:
    given = arguments.to_hydra_overrides(
        ["target=a,b", "target.options.kept=[],[aten::add]", "evaluation.max_samples=null"]
    )
    points = arguments.points(given)
    assert [arguments.to_user_overrides(point) for point in points] == [
        [f"target={target}", f"target.options.kept={kept}", "evaluation.max_samples=null"]
        for target in "ab"
        for kept in ("[]", "[aten::add]")
    ]
    assert arguments.as_params(BASE, points[3]) == {
        "target": "b",
        "plugins": [],
        "overrides": {"evaluation": {"max_samples": None}, "target": {"options": {"kept": ["aten::add"]}}},
    }
    assert BASE["overrides"] == {"evaluation": {"max_samples": 4}}


def test_a_case_sets_several_choices_and_what_is_typed_beside_it_wins() -> None:
    cases = {
        "small": {"model": "ds_cnn", "overrides": {"evaluation": {"layer_samples": 2}}},
        "large": {"model": "resnet50"},
    }
    points = arguments.points(
        arguments.to_hydra_overrides(["case=small,large", "target=xnnpack_cpu", "evaluation.layer_samples=3"])
    )
    assert [arguments.to_user_overrides(point)[0] for point in points] == ["case=small", "case=large"]
    small, large = (arguments.as_params({**BASE, "cases": cases}, point) for point in points)
    assert (small["model"], large["model"]) == ("ds_cnn", "resnet50")
    assert small["overrides"] == {"evaluation": {"max_samples": 4, "layer_samples": 3}}
    assert not {"case", "cases"} & {*small, *large}
    with pytest.raises(ConfigurationError, match=r"case=smal: there is no such case. Allowed: small, large"):
        arguments.as_params({**BASE, "cases": cases}, ["++case=smal"])
    with pytest.raises(ConfigurationError, match=r"Allowed: none; a file of conf/experiment has them"):
        arguments.as_params(BASE, ["++case=small"])


def test_cases_have_the_form_of_params_yaml(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    path = tmp_path / "experiment" / "mine.yaml"
    for cases, message in (
        ("[a]", r"sweep.cases must map the name of each case"),
        ("{a: {modle: x}}", r"modle in sweep.cases is none of"),
    ):
        path.write_text(f"sweep: {{cases: {cases}}}")
        with pytest.raises(ConfigurationError, match=message):
            hydra_multirun.read_experiment(tmp_path, ["experiment=mine"])


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("~target", "cannot remove or move"),
        ("tagret=a", "tagret: there is no such group.*Did you mean target"),
        ("targett.options.x=1", "there is no such section"),
        ("target=[a", "An override is key=value"),
    ],
)
def test_what_cannot_be_an_override_is_refused(typed: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"(?s){message}"):
        arguments.to_hydra_overrides([typed])


def test_a_glob_lists_the_options_that_it_matches(tmp_path: Path) -> None:
    """Hydra lists options of its own groups alone, so that every glob was refused."""
    (tmp_path / "flavor").mkdir()
    for name in ("mine_a", "mine_b"):
        (tmp_path / "flavor" / f"{name}.yaml").touch()
    typed = ["target=xnnpack_cpu", "flavor=glob([mine*,vela],exclude=*b)", "case=small"]
    assert arguments.without_globs(typed, tmp_path)[::2] == typed[::2]
    assert arguments.without_globs(["flavor=glob(mine*)"], tmp_path) == ["flavor=mine_a,mine_b"]
    with pytest.raises(
        ConfigurationError, match=r"flavor=glob\(none\*\): no option matches; there are: .*mine_a, mine_b"
    ):
        arguments.without_globs(["flavor=glob(none*)"], tmp_path)
    with pytest.raises(ConfigurationError, match="no option matches; a glob is for one of model, "):
        arguments.without_globs(["build.seed=glob(*)"], tmp_path)


def test_an_interval_needs_a_sweeper_that_searches() -> None:
    given = arguments.to_hydra_overrides(["quantization.num_calibration_samples=interval(1,9)"])
    with pytest.raises(ConfigurationError, match="hydra/sweeper=optuna"):
        arguments.points(given)
    assert [
        arguments.as_params(BASE, point)["overrides"]["quantization"] for point in arguments.sample_points(given)
    ] == [
        {"num_calibration_samples": 1.0},
        {"num_calibration_samples": 9.0},
    ]


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (["build.seed=range(0,1000000000)"], "the sweep has 1,000,000,000 points, and at most 10,000 are allowed"),
        (["build.seed=range(0,200)", "target=a,b", "build.num_threads=range(0,100)"], "the sweep has 40,000 points"),
        (["build.seed=range(0,1,0)"], "a range with step 0 never ends"),
        (["target=a,b", "build.seed=range(8,8)"], "build.seed=range(8,8): this range has no values"),
        (["target=glob(*)"], "list the names; a glob is for the command line alone"),
        ([f"model.options={'[' * 2000}{']' * 2000}"], "its lists and mappings are nested too deeply"),
    ],
)
def test_a_sweep_without_bound_is_refused_before_its_points_are_listed(typed: list[str], says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        arguments.points(arguments.to_hydra_overrides(typed))
    assert says in str(caught.value)
