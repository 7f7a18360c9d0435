"""lowerdeck.compat.pydantic: plug-ins of pydantic that happen to be installed do not see the configuration."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lowerdeck.compat.pydantic import without_plugins

SCRIPT = """
import sys
from lowerdeck.config.problems import validate
from lowerdeck.config.schema import GatesConfig
print(validate(GatesConfig, {"name": "strict"})[1], "plugin" in sys.modules)
"""


def test_plugins_are_not_loaded(tmp_path: Path) -> None:
    metadata = tmp_path / "plugin-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[pydantic]\nplugin = plugin:installed\n")
    (tmp_path / "plugin.py").write_text("installed = None\n")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "[] False\n", done.stderr


@pytest.mark.parametrize("before", [None, "logfire-plugin"])
def test_the_choice_of_others_comes_back(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if before is None:
        monkeypatch.delenv("PYDANTIC_DISABLE_PLUGINS", raising=False)
    else:
        monkeypatch.setenv("PYDANTIC_DISABLE_PLUGINS", before)
    with without_plugins():
        assert os.environ["PYDANTIC_DISABLE_PLUGINS"] == "__all__"
    assert os.environ.get("PYDANTIC_DISABLE_PLUGINS") == before
