"""lowerdeck.comparison.parameters: what was chosen, and what only follows from a choice."""

from __future__ import annotations

from lowerdeck.comparison.builds import State, finite_metrics
from lowerdeck.comparison.parameters import Parameter, common, differing
from tests.comparison.builds_by_hand import build


def parameters(*rows: dict[str, str], overridden: frozenset[str] = frozenset()) -> list[Parameter]:
    builds = [build(str(number), params=params, overridden=overridden) for number, params in enumerate(rows)]
    return differing(builds)


def keys(*rows: dict[str, str], overridden: frozenset[str] = frozenset()) -> list[str]:
    return [parameter.key for parameter in parameters(*rows, overridden=overridden)]


def test_values_stand_in_the_order_of_the_builds_and_absent_ones_are_shown() -> None:
    (only,) = parameters({"x.y": "b"}, {}, {"x.y": "a"})
    assert only == Parameter(key="x.y", values=("b", "-", "a"))


def test_the_most_frequent_value_comes_first_then_the_shortest() -> None:
    assert Parameter(key="x", values=("cc", "b", "b", "d", "a")).distinct == ("b", "a", "d", "cc")


def test_what_all_share_is_no_parameter() -> None:
    assert parameters({"x.y": "1", "x.z": "2"}, {"x.y": "1", "x.z": "2"}) == []


def test_sections_come_first_in_their_order() -> None:
    rows = [{"build.a": value, "target.name": value, "model.name": value, "quantization.name": value} for value in "ab"]
    assert keys(*rows) == ["model", "quantization", "target", "build.a"]


def test_what_follows_a_choice_is_named_with_it() -> None:
    rows = [{"target.name": name, "target.device": name * 2, "target.speed": "1"} for name in "aab"]
    assert parameters(*rows) == [Parameter(key="target", values=("a", "a", "b"), follows=("target.device",))]


def test_a_value_that_differs_under_one_choice_or_was_given_is_a_parameter() -> None:
    rows = [{"target.name": name, "target.device": device} for name, device in ("ax", "ay", "bx")]
    assert keys(*rows) == ["target", "target.device"]
    rows = [{"target.name": name, "target.device": name} for name in "ab"]
    assert keys(*rows, overridden=frozenset(("target.device",))) == ["target", "target.device"]


def test_a_value_without_a_choice_of_its_section_is_a_parameter() -> None:
    assert keys(*({"target.name": "a", "target.device": device} for device in "xy")) == ["target.device"]
    assert keys(*({"other.name": name, "other.x": name} for name in "ab")) == ["other.name", "other.x"]


class TestFlavor:
    def test_the_targets_default_is_no_choice(self) -> None:
        rows = [{"target.name": n, "target.default_flavor": n, "flavor.name": n, "flavor.converter": n} for n in "ab"]
        (only,) = parameters(*rows)
        assert only.key == "target"
        assert only.follows == ("flavor.converter", "target.default_flavor")

    def test_another_one_is(self) -> None:
        rows = [
            {"target.name": "a", "target.default_flavor": "a", "flavor.name": name, "flavor.x": name} for name in "ab"
        ]
        (only,) = parameters(*rows)
        assert (only.key, only.values, only.follows) == ("flavor", ("default", "b"), ("flavor.x",))


def test_what_all_have_in_common() -> None:
    builds = [build("a", params={"x": "1", "y": "2", "z": "3"}), build("b", params={"x": "1", "y": "3"}),
              build("c", params={"x": "1", "y": "2", "z": "3"})]  # fmt: skip
    assert common(builds) == {"x": "1"}
    assert common(builds[:1]) == {"x": "1", "y": "2", "z": "3"}
    assert common([]) == {}


def test_only_finite_numbers_are_metrics() -> None:
    given = {"a": 1, "b": 0.5, "c": True, "d": "1", "e": float("nan"), "f": -float("inf"), "g": None}
    assert finite_metrics(given) == {"a": 1.0, "b": 0.5}
    assert isinstance(finite_metrics(given)["a"], float)


def test_only_a_finished_build_that_keeps_its_gates_may_be_chosen() -> None:
    assert [state for state in State if build("a", state=state).is_eligible] == [State.BUILT]
    assert build("a", {"x": 0.0}).has_metrics
    assert not build("a").has_metrics


def test_an_interval_has_two_ends() -> None:
    assert build("a", {"x_low": 0.0, "x_high": 0.0}).interval("x") == (0.0, 0.0)
    assert build("a", {"x_low": 0.0}).interval("x") is build("a", {"x_high": 0.0}).interval("x") is None
