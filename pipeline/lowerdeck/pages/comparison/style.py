"""How the page looks beside what all pages share: colours that the colour-blind can tell apart, light and dark."""

STYLE = """
:root { --c0: #0072b2; --c1: #d55e00; --c2: #008060; --c3: #b3589a; --c4: #a87400; --c5: #2f9fd8; --c6: #6b6b6b;
  --good: #005f94; --bad: #a84300; --mark: rgba(0, 114, 178, .13); --tied: rgba(168, 116, 0, .14); }
@media (prefers-color-scheme: dark) { :root { --c0: #56b4e9; --c1: #ff8f45; --c2: #2fd3a5; --c3: #e79cc9; --c4: #f0c544;
  --c5: #a9d9f5; --c6: #a9a9a9; --good: #7cc6f2; --bad: #ff9d63; --mark: rgba(86, 180, 233, .2);
  --tied: rgba(240, 197, 68, .17); } }
main { max-width: 1400px; }
.summary { padding-left: 1.2em; margin: 16px 0; }
.controls { display: flex; flex-wrap: wrap; gap: 10px 14px; align-items: end; position: sticky; top: 0; z-index: 3;
  background: var(--ground); padding: 10px 0; border-bottom: 1px solid var(--line); }
.controls[hidden] { display: none; }
.controls label { display: grid; font-size: .8rem; color: var(--soft); max-width: 100%; }
.controls .check { display: flex; gap: 6px; align-items: center; padding: 6px 0; }
.controls input[type=search], .controls select { font: inherit; font-size: .9rem; color: var(--ink); padding: 5px 8px;
  background: var(--card); border: 1px solid var(--line); border-radius: 6px; min-width: 0; max-width: 15em; }
output { color: var(--soft); font-size: .85rem; padding: 6px 0; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: .85rem; margin: 0 0 8px; }
.legend span { display: inline-flex; gap: 5px; align-items: center; }
.legend .by { color: var(--soft); }
.sign { width: 15px; height: 15px; flex: none; display: inline-block; vertical-align: -2px; margin-right: 5px; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 380px), 1fr)); gap: 14px; }
figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 12px;
  min-width: 0; }
figcaption small { display: block; color: var(--soft); }
.plot { display: block; width: 100%; height: auto; max-width: 600px; margin: 0 auto; }
.parallel { display: block; width: 100%; height: 400px; }
svg text { font: 12px system-ui, sans-serif; fill: var(--ink); }
svg .tick { fill: var(--soft); font-size: 11px; }
svg .axis { font-weight: 600; }
svg .value { font-size: 11px; paint-order: stroke; stroke: var(--card); stroke-width: 4px; stroke-linejoin: round; }
.grid { stroke: var(--line); stroke-width: 1; }
.rail { stroke: var(--soft); stroke-width: 1.5; }
.interval { stroke: var(--soft); stroke-width: 1; fill: none; opacity: .55; }
.frontier { stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 5 4; fill: none; }
.mark { fill: var(--color); stroke: var(--card); stroke-width: 1; cursor: pointer; fill-opacity: .72; }
.mark.optimal { stroke: var(--ink); stroke-width: 1.6; fill-opacity: 1; }
.mark.within_noise { fill: var(--card); stroke: var(--color); stroke-width: 2.4; fill-opacity: 1; }
.mark.unfit { stroke: var(--color); stroke-width: 2; fill: none; } .mark .hit { fill: transparent; stroke: none; }
.line { fill: none; stroke: var(--color); stroke-width: 1.1; opacity: .35; cursor: pointer; }
.many .line { opacity: .07; }
.line.optimal, .many .line.optimal { stroke-width: 2.4; opacity: .95; }
.line.within_noise, .many .line.within_noise { stroke-width: 2; opacity: .8; stroke-dasharray: 7 3; }
.line.unfit { stroke-dasharray: 2 4; }
.c0 { --color: var(--c0); } .c1 { --color: var(--c1); } .c2 { --color: var(--c2); } .c3 { --color: var(--c3); }
.c4 { --color: var(--c4); } .c5 { --color: var(--c5); } .c6 { --color: var(--c6); } .key { --color: var(--soft); }
svg .off { display: none; }
.mark.lit { stroke: var(--ink); stroke-width: 2.4; fill-opacity: 1; }
.line.lit, .many .line.lit { stroke: var(--ink); stroke-width: 3.5; opacity: 1; }
tr.lit > * { background: var(--mark) !important; }
.scroll.builds { max-height: 78vh; overflow: auto; margin-bottom: 8px; }
.builds thead th, .flavor thead th, .effects thead th { vertical-align: bottom; background: var(--card); }
.builds thead th { position: sticky; top: 0; z-index: 2; box-shadow: 0 1px 0 var(--line); }
.builds th[aria-sort] { cursor: pointer; }
.builds th[aria-sort=ascending]::after { content: " ▲"; } .builds th[aria-sort=descending]::after { content: " ▼"; }
th.wanted { color: var(--ink); }
th small, td small { display: block; font-weight: 400; color: var(--soft); font-size: .78rem; white-space: nowrap; }
tbody th { white-space: nowrap; font-weight: 400; position: sticky; left: 0; background: var(--card); z-index: 1; }
thead th:first-child { left: 0; z-index: 3; position: sticky; }
tr.optimal th { font-weight: 700; }
.scroll td { min-width: 0; }
.builds td:not(.number), .flavor td:not(.number), .effects td:not(.number) { max-width: 22em;
  overflow-wrap: break-word; }
td.best { background: var(--mark); } td.tied { background: var(--tied); }
td i { font-style: normal; margin-right: 5px; color: var(--good); }
td.tied i, td.none i { color: var(--soft); }
td.none { color: var(--soft); } td.better { color: var(--good); } td.worse, td.worse i { color: var(--bad); }
.builds td.files { white-space: nowrap; max-width: none; } .files a { margin-right: 6px; } a { color: var(--good); }
#more { font: inherit; padding: 6px 14px; color: var(--ink); background: var(--card); border: 1px solid var(--line);
  border-radius: 6px; cursor: pointer; }
#card { position: fixed; right: 16px; bottom: 16px; z-index: 5; width: min(420px, calc(100vw - 32px)); max-height: 60vh;
  overflow: auto; background: var(--card); border: 1px solid var(--soft); border-radius: 8px; padding: 10px 14px;
  box-shadow: 0 6px 24px rgba(0, 0, 0, .25); font-size: .85rem; }
#card dl { display: grid; grid-template-columns: minmax(0, 2fr) minmax(0, 3fr); gap: 1px 12px; margin: 4px 0 8px; }
#card dt, #card dd { margin: 0; overflow-wrap: anywhere; } #card dt { color: var(--soft); }
@media (max-width: 640px) { .controls { position: static; } #card { right: 8px; bottom: 8px; width: calc(100vw - 16px);
  max-height: 42vh; } .controls input[type=search], .controls select { max-width: 10em; } }
@media print { .controls, #more { display: none; } .scroll.builds { max-height: none; } }
"""
