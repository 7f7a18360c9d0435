"""`lowerdeck completion`: what shells complete."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lowerdeck.cli import main
from tests.project import SOURCES, Project


@pytest.fixture
def workspace(tmp_path: Path) -> Project:
    """A folder with a target of its own, where the command `lowerdeck` is this repository's."""
    (tmp_path / "conf" / "target").mkdir(parents=True)
    (tmp_path / "conf" / "target" / "ours.yaml").write_text("name: ours\n")
    command = tmp_path / "bin" / "lowerdeck"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m lowerdeck.cli "$@"\n')
    command.chmod(0o755)
    return Project(tmp_path, {"PYTHONPATH": SOURCES})


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main.main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("doc", "doctor"),
        ("add ta", "target task"),
        ("doctor --target ou", "ours"),
        ("add target mine --like xnn", "xnnpack_cpu"),
        ("conf quantization.sch", "quantization.scheme"),
        ("init --from xnn", "xnnpack"),
        ("run --on host", "host_native"),
    ],
)
def test_bash(workspace: Project, capsys: pytest.CaptureFixture[str], typed: str, completed: str) -> None:
    path = workspace.root / "completion.sh"
    words = typed.split()
    ask = f"COMP_WORDS=(lowerdeck {typed}); COMP_CWORD={len(words)}; _shtab_lowerdeck; echo ${{COMPREPLY[*]}}\n"
    path.write_text(f'PATH="$PWD/bin:$PATH"\n{script("bash", capsys)}\n{ask}')
    done = workspace.run("bash", str(path))
    assert sorted(done.stdout.split()) == completed.split(), done.stderr


@pytest.mark.skipif(shutil.which("zsh") is None, reason="apt-get install zsh")
def test_zsh_reads_its_script(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "_lowerdeck"
    path.write_text(script("zsh", capsys))
    subprocess.run(["zsh", "-n", str(path)], check=True)
    assert "lowerdeck conf --names target" in path.read_text()


def test_tcsh_gets_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert "complete lowerdeck" in script("tcsh", capsys)
