"""What all pages share: how they look, their head, sections and tables. Everything that is no Markup is escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; --ground: #fbfbfa; --card: #ffffff; --ink: #1d2328; --soft: #5c6670; --line: #dfe3e6;
  --right: 33, 110, 190; --wrong: 205, 60, 40; --warn: #7a4b00; --warn-ground: #fff4d9; --warn-line: #e8c873; }
@media (prefers-color-scheme: dark) { :root { --ground: #14181b; --card: #1c2125; --ink: #e4e8eb; --soft: #98a3ad;
  --line: #333b42; --right: 90, 160, 235; --wrong: 240, 100, 80; --warn: #f2d28b; --warn-ground: #33290f;
  --warn-line: #6b5622; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 24px 20px 64px; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 40px 0 12px; }
h3 { font-size: .85rem; margin: 20px 0 6px; color: var(--soft); font-weight: 600; }
.kind { margin: 0 0 4px; color: var(--soft); }
.caveat { background: var(--warn-ground); color: var(--warn); border: 1px solid var(--warn-line); border-radius: 6px;
  padding: 10px 14px; margin: 20px 0 0; font-weight: 600; }
.hint { color: var(--soft); margin: 0 0 8px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); gap: 12px; margin-bottom: 16px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px; }
.tile h3 { margin: 0 0 4px; }
.tile b { display: block; font-size: 1.4rem; line-height: 1.25; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: .85rem; }
.scroll { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  margin: 0 0 12px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: 6px 12px; border-top: 1px solid var(--line); }
tbody tr:first-child > *, thead tr > * { border-top: 0; }
thead + tbody tr:first-child > * { border-top: 1px solid var(--line); }
thead th { color: var(--soft); font-size: .85rem; font-weight: 600; white-space: nowrap; }
td { min-width: 7em; overflow-wrap: break-word; }
.pairs td { overflow-wrap: anywhere; }
td.number, th.number { text-align: right; white-space: nowrap; min-width: 0; }
.pairs td:first-child { width: 30%; min-width: 9em; color: var(--soft); }
code { font: .85em/1.5 ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
.chain code { display: block; min-width: 22em; }
.wide td:last-child { min-width: 18em; }
.bar { background: linear-gradient(90deg, rgba(var(--right), .35) var(--share), transparent var(--share));
  padding: 0 6px; min-width: 9em; border-radius: 3px; }
.matrix { width: auto; }
.matrix th, .matrix td { min-width: 2.6em; padding: 5px 8px; text-align: center; border: 0; color: var(--soft); }
.matrix td.right { background: rgba(var(--right), calc(var(--share) * .6)); color: var(--ink); }
.matrix td.wrong { background: rgba(var(--wrong), calc(12% + var(--share) * .6)); color: var(--ink); }
.matrix td.zero { opacity: .35; }
@media (max-width: 520px) { .matrix th, .matrix td { min-width: 2em; padding: 4px 3px; }
  main { padding: 16px 14px 48px; } }
summary { cursor: pointer; padding: 6px 0; }
details .scroll { margin-top: 6px; }
"""


class Markup(str):
    """Text that is HTML already; everything else is escaped."""

    __slots__ = ()


def page_head(title: str, style: str = "", script: str = "") -> str:
    """All of a page before its `<main>`.

    Args:
        title: Of the page.
        style: Rules beside those that all pages share.
        script: The one script of the page, which `script_element` writes; empty where nothing runs.
    """
    # The browser itself holds the page to its word: nothing is loaded, and nothing else runs.
    policy = "default-src 'none'; style-src 'unsafe-inline'" + (f"; script-src '{_digest(script)}'" if script else "")
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            f"<title>{escape(title)} - Lowerdeck</title><style>{STYLE}{style}</style></head><body>",
        )
    )


def script_element(script: str) -> str:
    """The script that `page_head` lets run."""
    return f"<script>{script}</script>"


def _digest(script: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def section(title: str, *content: str) -> str:
    """A heading and what stands below it."""
    return f"<section><h2>{escape(title)}</h2>{''.join(content)}</section>"


def table(header: Sequence[str], rows: Iterable[Sequence[Any]], style: str = "") -> str:
    """A table that scrolls by itself where the window is narrow; numbers are set to the right."""
    rows = list(rows)
    numeric = [isinstance(value, int) for value in rows[0]] if rows else [False] * len(header)
    titles = "".join(
        f'<th scope="col"{" class=number" if right else ""}>{escape(cell)}</th>'
        for cell, right in zip(header, numeric, strict=False)
    )
    body = "".join(f"<tr>{''.join(_cell(cell) for cell in row)}</tr>" for row in rows)
    thead = f"<thead><tr>{titles}</tr></thead>" if header else ""
    return f'<div class="scroll"><table class="{style}">{thead}<tbody>{body}</tbody></table></div>'


def _cell(value: Any) -> str:
    if isinstance(value, Markup):
        return f"<td>{value}</td>"
    return f'<td class="number">{value:,}</td>' if isinstance(value, int) else f"<td>{escape(str(value))}</td>"
