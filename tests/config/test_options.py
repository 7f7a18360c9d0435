"""lowerdeck.config.options: options of a workspace before those of the package."""

from __future__ import annotations

from pathlib import Path

from lowerdeck.config.choices import conf_values
from lowerdeck.config.options import conf_folders, option_file, option_names, package_files
from tests.project import REPOSITORY


def test_this_repository_is_what_the_package_brings() -> None:
    assert package_files() == REPOSITORY
    assert conf_folders(REPOSITORY / "conf") == [REPOSITORY / "conf"]


def test_a_workspaces_option_replaces_the_packages(tmp_path: Path) -> None:
    (tmp_path / "gates").mkdir()
    (tmp_path / "gates" / "none.yaml").write_text("name: none\nmin_delegated_share: 0.5\n")
    (tmp_path / "gates" / "ours.yaml").write_text("name: ours\n")
    assert option_names("gates", tmp_path) == ["none", "ours", "release"]
    assert option_file("gates", "none", tmp_path) == tmp_path / "gates" / "none.yaml"
    assert option_file("gates", "release", tmp_path) == REPOSITORY / "conf" / "gates" / "release.yaml"
    assert conf_values({}, tmp_path)["gates"] == {"name": "none", "min_delegated_share": 0.5}
    assert conf_values({"gates": "ours", "target": "xnnpack_cpu"}, tmp_path)["target"]["backend"] == "xnnpack"


def test_without_a_conf_folder_the_packages_options_are_all(tmp_path: Path) -> None:
    assert option_names("gates", tmp_path / "conf") == ["none", "release"]
    assert conf_values({}, tmp_path / "conf")["model"]["name"] == "resnet8_pictures"
