"""lowerdeck.sweeps.snapshot: what a sweep copies of the project's folder."""

from __future__ import annotations

from pathlib import Path

from lowerdeck.fingerprints.digests import FILES
from lowerdeck.sweeps import snapshot


def test_links_that_lead_back_or_nowhere_are_not_copied(tmp_path: Path) -> None:
    """A build took them, and a sweep ended in an unforeseen error, or not at all."""
    for file in ("plugins/net.py", "plugins/.hidden", "shared/blocks.py", "conf/model/net.yaml"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(file)
    (tmp_path / "empty").mkdir()
    for link, target in (
        *(("plugins/shared", "../shared"), ("plugins/self", "."), ("plugins/up", ".."), ("shared/back", "../plugins")),
        *(("plugins/.#net.py", "me@host.1"), ("conf/.#net.yaml", "me@host.1")),
    ):
        (tmp_path / link).symlink_to(target)
    copy = snapshot.take(tmp_path, ["plugins", "empty"])
    copied = {path.relative_to(copy).as_posix() for path in (copy / "plugins").rglob("*") if path.is_file()}
    assert copied == {"plugins/net.py", "plugins/.hidden", "plugins/shared/blocks.py"}
    assert (copy / "conf" / "model" / "net.yaml").read_text() == "conf/model/net.yaml"
    for name in ("plugins", "empty"):
        assert FILES.digest(copy / name) == FILES.digest(tmp_path / name)
