"""lowerdeck.comparison.identical: programs of the same bytes share a row that lists their configurations."""

from __future__ import annotations

import csv
import io
import json

from lowerdeck.comparison import exports
from lowerdeck.comparison.builds import ComparedBuild, State
from lowerdeck.comparison.comparison import compare
from lowerdeck.comparison.conclusions import sentences
from tests.comparison.builds_by_hand import build


def of(label: str, digest: str, kept: str, **fields: object) -> ComparedBuild:
    return build(label, {"program_bytes": 10.0 + len(digest)}, program_sha256=digest,
                 params={"target.name": "x", "target.options.kept": kept}, **fields)  # fmt: skip


BUILDS = [of("a", "1", '["aten::exp"]'), of("b", "1", "[]"), of("c", "22", '["aten::add"]'), of("d", "", "-")]


def test_the_simplest_configuration_stands_for_its_doubles() -> None:
    found = compare(BUILDS)
    assert {row.label: [other.label for other in row.identical] for row in found.builds} == {
        "b": ["a"],
        "c": [],
        "d": [],
    }
    (kept,) = found.parameters
    assert dict(zip([row.label for row in found.builds], kept.values, strict=True))["b"] == '[] or ["aten::exp"]'
    assert next(sentences(found)) == "4 builds, 3 different programs."


def test_equal_bytes_that_were_judged_otherwise_keep_their_rows() -> None:
    gated = of("e", "1", "[ ]", state=State.GATED)
    others = of("f", "1", "[  ]", samples="t")
    measured = build("g", {"program_bytes": 9.0}, program_sha256="1", params=BUILDS[0].params)
    assert {row.label for row in compare([*BUILDS, gated, others, measured]).builds} == {*"bcdefg"}
    unknown = [of("g", "", "1"), of("h", "", "2")]
    assert len(compare(unknown).builds) == 2


def test_effects_still_know_every_configuration() -> None:
    found = {(effect.before, effect.after) for effect in compare(BUILDS).effects}
    assert any("aten::exp" in before + after for before, after in found)


def test_exports_carry_recommendation_and_configurations() -> None:
    found = compare(BUILDS)
    plain = json.loads(exports.as_json(found))
    (recommended,) = plain["recommendations"]
    assert recommended["build"] == "d"
    assert recommended["runner_up"] == "b"
    row = next(entry for entry in plain["builds"] if entry["build"] == "b")
    assert [one["build"] for one in row["configurations"]] == ["b", "a"]
    rows = {row["build"]: row for row in csv.DictReader(io.StringIO(exports.as_csv(found)))}
    assert (rows["d"]["recommended"], rows["b"]["recommended"], rows["b"]["same_program"]) == ("yes", "", "a")
    text = exports.as_markdown(found, "Sweep <x>")
    assert "### Sweep \\<x\\>: which build to ship" in text
    assert "- **x**: ship `d`" in text
    assert "| b = a |" in text


def test_each_target_keeps_its_answer_where_the_bytes_are_the_same() -> None:
    """Targets that share a converter were merged into one row: the second one had no answer, or a wrong one."""
    builds = [
        build(label, {"ram_bytes": ram}, program_sha256=digest,
              params={"target.name": target, "quantization.name": scheme})
        for label, ram, digest, target, scheme in (
            ("a", 500.0, "1", "m4", "int8"), ("b", 500.0, "1", "m7", "int8"),
            ("c", 600.0, "2", "m7", "int16"), ("d", 700.0, "3", "m4", "int16"),
        )
    ]  # fmt: skip
    found = compare(builds)
    assert {each.target: each.build and each.build.label for each in found.recommendations} == {"m4": "a", "m7": "b"}
    assert not any(row.identical for row in found.builds)
    assert next(sentences(found)) == "4 builds, 3 different programs."
