"""Style and script of the HTML report."""

from __future__ import annotations

PAGE_CSS = """
:root{color-scheme:light dark;--ink:#111;--soft:#555;--paper:#fff;--edge:#ccc;--bar:#5b8dd6;--hit:#ffe08a}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:0 auto;max-width:1900px;
padding:0 16px 40px}
h1{font-size:22px}h2{font-size:17px;margin:24px 0 6px}
table{border-collapse:collapse}th{text-align:left;font-weight:normal;color:var(--soft);padding:0 14px 0 0}td{padding:0}
pre{white-space:pre-wrap;overflow-wrap:anywhere;font:14px/1.8 ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace}
.hint,.key{color:var(--soft);margin:0}
.key i{font-style:normal;color:var(--ink);border:1px solid var(--edge);padding:0 6px;margin:0 4px 0 12px}
.key .bars{background:var(--bar);color:#fff}.key .skip{background:var(--paper)}.key .dots{border-radius:50%}
.round{cursor:pointer;border-left:2px solid #666;padding:2px 1px}
.h0{background:#fde2b8}.h1{background:#cfe8fc}.h2{background:#e2f3c4}.h3{background:#f4d5ee}.h4{background:#cdeee6}
.h5{background:#e7e1d3}
.round.chosen{outline:3px solid #111}
.round:focus-visible,#tree:focus-visible,button:focus-visible{outline:3px solid #1a56c4}
.nl::before{content:'\\23CE';color:#888;font-style:normal}
#tree{overflow:auto;border:1px solid var(--edge);padding:8px;min-height:80px}
#pair{display:block}
@media (min-width:1100px){#pair{display:grid;grid-template-columns:minmax(0,1fr) minmax(0,1fr);gap:24px}
#beside{position:sticky;top:0;align-self:start}#tree{max-height:85vh}}
.chart{overflow-x:auto}
.chart text{font:11px system-ui,sans-serif;fill:var(--soft)}
.chart path{fill:none;stroke:var(--soft)}
.chart .grid{stroke:var(--edge);stroke-dasharray:2 3}
.chart [data-round]{cursor:pointer}
.chart .hit{fill:transparent}
.chart .bar{fill:var(--bar)}
.chart .plain{fill:var(--paper);stroke:var(--bar)}
.chart circle{fill:var(--ink)}
.chart .bar,.chart circle{pointer-events:none}
.chart .chosen .hit{fill:var(--hit)}
@media (prefers-color-scheme:dark){
:root{--ink:#e8e8e8;--soft:#aaa;--paper:#16181b;--edge:#444;--bar:#6f9fe6;--hit:#5a4a14}
.h0{background:#5b4417}.h1{background:#17405f}.h2{background:#33501a}.h3{background:#54284b}.h4{background:#17504a}
.h5{background:#454037}.round.chosen{outline-color:#e8e8e8}}
"""

# One listener each for clicks and keys; the address keeps the round, so that a link can point at it.
PAGE_JS = """
'use strict';
(() => {
  const spans = [...document.querySelectorAll('#text .round')];
  const order = spans.map((span) => span.dataset.round);
  const panel = document.getElementById('tree');
  let chosen = -1;
  const choose = (at, focus) => {
    if (at < 0 || at >= order.length) return;
    chosen = at;
    for (const old of document.querySelectorAll('.chosen')) old.classList.remove('chosen');
    for (const now of document.querySelectorAll(`[data-round="${order[at]}"]`)) now.classList.add('chosen');
    panel.replaceChildren(document.getElementById(`round-${order[at]}`).content.cloneNode(true));
    try { history.replaceState(null, '', `#${order[at]}`); } catch (error) { /* some viewers forbid it */ }
    if (focus) spans[at].focus();
  };
  document.addEventListener('click', (event) => {
    const hit = event.target.closest('[data-round]');
    if (hit) choose(order.indexOf(hit.dataset.round), false);
  });
  document.getElementById('back').addEventListener('click', () => choose(chosen < 0 ? order.length - 1 : chosen - 1));
  document.getElementById('next').addEventListener('click', () => choose(chosen + 1));
  document.addEventListener('keydown', (event) => {
    const at = spans.indexOf(document.activeElement);
    if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Enter: 0, ' ': 0 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    choose(at + step, true);
  });
  choose(order.indexOf(location.hash.slice(1) || document.body.dataset.open), false);
})();
"""
