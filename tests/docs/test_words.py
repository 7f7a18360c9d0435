"""The glossary: its terms, and the words that it bans do not occur."""

from __future__ import annotations

import re

import pytest

from tests.docs.test_drift import FILES, ROOT

GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
TERMS = re.findall(r"^- \*\*(.+?)\*\*: (.(?:.|\n  )+)", GLOSSARY, re.MULTILINE)
ROWS = re.findall(r"^\| (.+?) \| (.+?) \|$", GLOSSARY, re.MULTILINE)[2:]
BANNED = [word.strip() for words, _ in ROWS for word in words.split(",")]
HISTORY = ("docs/adr/", "docs/ledger/", "CHANGELOG.md", "build/", "tests/docs/test_words.py")
"""What keeps its words: decisions, records, and this file, which quotes them."""
SEARCHED = sorted(
    name
    for name in FILES
    if name.endswith((".md", ".py", ".yaml", ".toml", ".js", ".html", "Makefile"))
    and not name.startswith(HISTORY)
    and name != "docs/glossary.md"
)


def pattern(word: str) -> str:
    """Finds `word` over line ends too."""
    return r"[\s#]+".join(r"[\w'` ,]{1,40}" if part == "..." else re.escape(part) for part in word.split())


BANNED_PATTERN = re.compile(rf"(?<![\w.<-])(?:{'|'.join(map(pattern, BANNED))})(?![\w:-])", re.IGNORECASE)
"""Whole words; neither attributes nor CSS such as `border-color`."""


def banned(text: str) -> list[str]:
    """The banned words of a text and of the names in it, each as it stands there."""
    names = (name.replace("_", " ") for name in re.findall(r"\w+_\w+", text))
    return [word for part in (text, *names) for word in BANNED_PATTERN.findall(part)]


def test_the_glossary_has_its_terms_in_order() -> None:
    names = [name for name, _ in TERMS]
    assert len(names) >= 40
    assert names == sorted(names, key=str.casefold)
    assert len(set(names)) == len(names)
    assert all(meaning.rstrip().endswith(".") for _, meaning in TERMS)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_the_glossary_is_linked(page: str) -> None:
    assert "(docs/glossary.md)" in (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SEARCHED)
def test_banned_words_do_not_occur(name: str) -> None:
    assert banned((ROOT / name).read_text(encoding="utf-8")) == [], "docs/glossary.md says what to write"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("MACs an inference", ["an inference"]),
        ("It holds the file\n# against the digest", ["holds the file\n# against"]),
        ("Dearest first, as is told", ["Dearest", "is told"]),
        ("border-color: red; border: 0; who can be told apart, untold recommended amendments", []),
    ],
)
def test_banned_words_are_found(text: str, found: list[str]) -> None:
    assert banned(text) == found


def test_every_banned_word_is_found_by_its_pattern() -> None:
    assert len(BANNED) > 20
    assert [word for word in BANNED if not banned(f"It is {word.replace('...', 'it')} here.")] == []
