"""Adds to the site what docs/ links to and does not contain: pages and files of the repository, below repository/.

mkdocs calls these functions (`hooks` in mkdocs.yml). A page such as CHANGELOG.md becomes a page of the site; any other
file becomes a page that shows its text. Links between them are rewritten, so that the site works from disk and mkdocs
reports a link that leads nowhere.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]
FOLDER = "repository"
ALWAYS = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""Pages of the repository that the navigation names."""
SHIM = re.compile(r"<script src=\"https://unpkg\.com/iframe-worker/shim\"></script>")
"""What lets the theme search from disk."""
DECISIONS = "Decisions"
"""Their heading in mkdocs.yml."""
LINK = re.compile(
    r"^```.*?^```$|(?P<before>\]\(|^\[[^\]]+\]:\s*)(?![a-z]+:|#)(?P<target>[^)\s#]+)", re.MULTILINE | re.DOTALL
)
"""A block of code, which has no links; or the target of a relative link, without its anchor."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List every decision in the navigation, without a line for each in mkdocs.yml."""
    decisions = sorted(f"adr/{path.name}" for path in (ROOT / "docs" / "adr").glob("0*.md"))
    (entry,) = (
        entry for part in config.nav or [] for entries in part.values() for entry in entries if DECISIONS in entry
    )
    entry[DECISIONS] = ["adr/README.md", *decisions]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files of the repository that pages link to, and those that they link to in turn."""
    from mkdocs.structure.files import File, InclusionLevel

    waiting = [*ALWAYS, *(name for file in files.documentation_pages() for name in _linked(f"docs/{file.src_uri}"))]
    added = set()
    while waiting:
        name = waiting.pop()
        if name in added or name.startswith("docs/") or not (ROOT / name).is_file():
            continue
        added.add(name)
        waiting += _linked(name)
        inclusion = InclusionLevel.INCLUDED if name in ALWAYS else InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, site_name(name), content=_content(name), inclusion=inclusion))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Links as they lead from the page's place in the site."""
    place = page.file.src_uri
    source = place.removeprefix(f"{FOLDER}/") if place.startswith(f"{FOLDER}/") else f"docs/{place}"

    def rewritten(match: re.Match[str]) -> str:
        if match[0].startswith("```"):
            return match[0]
        target = site_name(_resolved(source, match["target"]))
        return match["before"] + os.path.relpath(target, Path(place).parent.as_posix())

    return LINK.sub(rewritten, markdown)


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """The page with our own script in place of the one that the theme loads from elsewhere."""
    script = os.path.relpath("search_from_disk.js", Path(page.file.dest_uri).parent.as_posix())
    return SHIM.sub(f'<script src="{script}"></script>', output)


def on_post_template(output_content: str, **_: Any) -> str:
    """Pages that have no source, such as 404.html, without that script: only a server shows them."""
    return SHIM.sub("", output_content)


def site_name(name: str) -> str:
    """Where a file of the repository lies among the sources of the site."""
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    return f"{FOLDER}/{name}" if name.endswith(".md") else f"{FOLDER}/{name}.md"


def _linked(name: str) -> list[str]:
    """Files of the repository that a page links to; other files link to none."""
    if not name.endswith(".md") or not (ROOT / name).is_file():
        return []
    found = LINK.finditer((ROOT / name).read_text(encoding="utf-8"))
    return [_resolved(name, match["target"]) for match in found if match["target"]]


def _resolved(source: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))


def _content(name: str) -> str:
    text = (ROOT / name).read_text(encoding="utf-8")
    if name.endswith(".md"):
        return text
    return f"# `{name}`\n\n```{Path(name).suffix.removeprefix('.')}\n{text}```\n"
