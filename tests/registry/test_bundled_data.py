"""Messages say where data and weights are that only the repository has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter

from lowerdeck import datasets
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.models.checkpoints import check_file
from lowerdeck.registry.bundled_data import where_to_get
from tests.project import REPOSITORY

CONF = REPOSITORY / "conf"
COPIED = {"cifar10_stand_in"}
"""What `lowerdeck init` copies."""
STAND_INS = {path.stem for path in (CONF / "dataset").glob("*_stand_in.yaml")} - COPIED
BUNDLED_WEIGHTS = {
    conf["weights"]
    for conf in (yaml.safe_load(path.read_text()) for path in (CONF / "model").glob("*.yaml"))
    if str(conf.get("weights")).startswith("data/checkpoints/")
}
SHAPES = {
    "streaming_wake_word_stand_in": [[1, 40, 691]],
    "toyadmos_stand_in": [[1, 640]],
    "visual_wake_words_stand_in": [[1, 3, 96, 96]],
}
"""What a model takes from them, where it is not the keywords' features."""


@pytest.fixture(autouse=True)
def _in_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", sorted(STAND_INS))
def test_stand_in_data(name: str) -> None:
    conf: dict[str, Any] = yaml.safe_load((CONF / "dataset" / f"{name}.yaml").read_text())
    source = datasets.source(conf["source"])
    options: Any = TypeAdapter(source.Options).validate_python(conf["options"])
    with pytest.raises(LowerdeckError, match=r"take data/stand_ins/\S+ from Lowerdeck's repository, to the same place"):
        source.load(options, SHAPES.get(name, [[1, 1, 49, 10]]), seed=0)


@pytest.mark.parametrize("weights", sorted(BUNDLED_WEIGHTS))
def test_weights(weights: str) -> None:
    with pytest.raises(LowerdeckError, match=f"take {weights} from Lowerdeck's repository"):
        check_file(weights)


@pytest.mark.parametrize("path", ["data/mine.csv", "data/stand_ins_of_mine/a", "/data/stand_ins/a"])
def test_what_the_repository_lacks(path: str) -> None:
    assert where_to_get(path) == ""
