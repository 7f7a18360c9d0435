"""lowerdeck.workspace.migration: keys and values that older configurations have."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lowerdeck.workspace import migration
from lowerdeck.workspace.migration import Migration, migrated_files


def test_a_renamed_key_moves_with_its_value_and_the_new_one_takes_precedence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renamed = Migration(key="evaluation.figures", new_key="evaluation.metrics", version="9.0")
    monkeypatch.setattr(migration, "MIGRATIONS", (renamed,))
    (tmp_path / "conf" / "evaluation").mkdir(parents=True)
    (tmp_path / "conf" / "evaluation" / "mine.yaml").write_text("figures: [top1]  # ours\n")
    (tmp_path / "conf" / "evaluation" / "both.yaml").write_text("figures: [top1]\nmetrics: [lsb]\n")
    (tmp_path / "conf" / "evaluation" / "other.yaml").write_text("metrics: [lsb]\n")
    (tmp_path / "params.yaml").write_text("overrides: {evaluation: {figures: [sqnr]}}\n")
    found = {path.name: (yaml.safe_load(text), lines) for path, text, lines in migrated_files(tmp_path)}
    lines = ("evaluation.figures is evaluation.metrics since version 9.0",)
    assert found == {
        "params.yaml": ({"overrides": {"evaluation": {"metrics": ["sqnr"]}}}, lines),
        "mine.yaml": ({"metrics": ["top1"]}, lines),
        "both.yaml": ({"metrics": ["lsb"]}, lines),
    }


def test_other_values_of_the_same_key_stay(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("overrides: {dataset: {source: random_inputs}, model: 3}\n")
    assert list(migrated_files(tmp_path)) == []
