"""`lowerdeck upgrade`: a workspace after another version of the package was installed."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lowerdeck.artifacts.files import write_bytes, write_text
from lowerdeck.fingerprints.digests import bytes_digest, file_digest
from lowerdeck.workspace import contents
from lowerdeck.workspace.migration import migrated_files

_DATA = "data/"


@dataclass(frozen=True, kw_only=True)
class Change:
    """What `upgrade` did to a file, or left to the user."""

    path: str
    action: str
    """`updated`, `added`, `migrated`, or `edited` for a file that was changed in the workspace and in the package."""
    lines: tuple[str, ...] = ()
    """Of an edited file the differences to the package's, of a migrated one what was done to each key, of .gitignore
    what was added."""


def upgrade(workspace: Path, *, replace_edited: bool = False) -> list[Change]:
    """Bring the generated files of `workspace` up to date and its configuration to today's keys.

    A file that was edited in the workspace is kept, whether or not the package's has changed; params.yaml is never
    replaced. Files below data/ that were removed stay removed, as do lines of .gitignore.

    Args:
        workspace: Folder that `lowerdeck init` made.
        replace_edited: Replace edited files that have changed in the package.

    Raises:
        LowerdeckError: `workspace` is none, or its configuration cannot be read.
    """
    record = contents.read_record(workspace)
    generated = contents.generated_files()
    changes = []
    for name, content in generated.items():
        change = _change(workspace / name, name, content, record.files.get(name))
        if change is None:
            continue
        if change.action == "edited" and replace_edited:
            change = Change(path=name, action="updated")
        if change.action != "edited":
            write_bytes(workspace / name, content)
        changes.append(change)
    changes += _ignored(workspace, record)
    for path, text, lines in migrated_files(workspace):
        write_text(path, text)
        changes.append(Change(path=path.relative_to(workspace).as_posix(), action="migrated", lines=lines))
    contents.link_code(workspace)
    kept = {change.path for change in changes if change.action == "edited"}
    _record(workspace, record, generated, kept)
    return changes


def _ignored(workspace: Path, record: contents.Record) -> Iterator[Change]:
    """Add what .gitignore lacks, unless these lines were added before: a user may have taken some out."""
    if record.files.get(contents.GITIGNORE) == file_digest(contents.IGNORED_LINES):
        return
    if lines := contents.add_ignored_lines(workspace):
        yield Change(path=contents.GITIGNORE, action="updated", lines=tuple(f"+{line}" for line in lines))


def _change(path: Path, name: str, content: bytes, recorded: str | None) -> Change | None:
    """What has to be done to a file; None if nothing."""
    if not path.is_file():
        removed = recorded is not None and name.startswith(_DATA)
        return None if removed else Change(path=name, action="added")
    found = path.read_bytes()
    if name == contents.PARAMS or found == content or recorded == bytes_digest(content):
        return None
    if bytes_digest(found) == recorded:
        return Change(path=name, action="updated")
    return Change(path=name, action="edited", lines=tuple(_diff(name, found, content)))


def _record(workspace: Path, record: contents.Record, generated: dict[str, bytes], kept: set[str]) -> None:
    """Record what was written; an edited file keeps its entry, so that the next upgrade shows the differences again."""
    digests = {name: bytes_digest(content) for name, content in generated.items()}
    old = {name: record.files[name] for name in kept if name in record.files}
    contents.write_digests(workspace, digests | old)


def _diff(name: str, found: bytes, content: bytes) -> Iterator[str]:
    yours, new = (data.decode("utf-8", "replace").splitlines() for data in (found, content))
    return difflib.unified_diff(yours, new, f"{name} (yours)", f"{name} (package)", lineterm="")
