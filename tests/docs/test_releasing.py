"""docs/releasing.md: its commands build, sign and verify a release of this repository."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

import pytest

from docs.reader import Reader, blocks
from tests.project import REPOSITORY, SOURCES, Project, copy_sources

PAGE = REPOSITORY / "docs" / "releasing.md"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="apt-get install openssh-client")
def test_a_release_is_built_signed_and_verified_and_an_altered_one_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "home" / ".ssh").mkdir(parents=True, mode=0o700)
    who = {f"GIT_{role}_{what}": "releaser" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    project = Project(tmp_path / "clone", {**who, "HOME": str(tmp_path / "home"), "PYTHONPATH": SOURCES})
    reader = Reader(project.root, project.variables())
    copy_sources(project.root)
    key = tmp_path / "home" / ".ssh" / "lowerdeck_release"
    for command in (
        ("git", "add", "--all"),
        ("git", "commit", "--quiet", "--message", "Release"),
        ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)),
    ):
        assert project.run(*command).returncode == 0
    for block in blocks(PAGE):
        reader.follow(block)
    (wheel,) = (project.root / "dist").glob("*.whl")
    assert sha256(wheel) == sha256(built_again(project, tmp_path)), "a second build has other bytes"
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    (verification,) = (block for block in blocks(PAGE) if "sha256sum --check" in block.text)
    with pytest.raises(AssertionError, match="sha256sum --check"):
        reader.follow(verification)


def built_again(project: Project, place: Path) -> Path:
    """The wheel, built directly from the sources and not from the archive."""
    epoch = project.run("git", "log", "-1", "--format=%ct").stdout.strip()
    command = (sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(place / "again"))
    done = project.run(*command, SOURCE_DATE_EPOCH=epoch)
    assert done.returncode == 0, done.stderr
    (wheel,) = (place / "again").glob("*.whl")
    return wheel


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
