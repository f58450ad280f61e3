"""Style and script of the HTML report."""

from __future__ import annotations

PAGE_CSS = """
body{font:15px/1.5 system-ui,sans-serif;color:#111;background:#fff;margin:0 auto;max-width:1200px;padding:0 16px 40px}
h1{font-size:22px}h2{font-size:17px;margin:24px 0 6px}
table{border-collapse:collapse}th{text-align:left;font-weight:normal;color:#555;padding:0 14px 0 0}td{padding:0}
pre{white-space:pre-wrap;overflow-wrap:anywhere;font:14px/1.8 ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace}
.hint{color:#555;margin:0}
.round{cursor:pointer;border-left:2px solid #666;padding:2px 1px}
.h0{background:#fde2b8}.h1{background:#cfe8fc}.h2{background:#e2f3c4}.h3{background:#f4d5ee}.h4{background:#cdeee6}
.h5{background:#e7e1d3}
.round.chosen{outline:3px solid #111}
.round:focus-visible,#tree:focus-visible,button:focus-visible{outline:3px solid #1a56c4}
.nl::before{content:'\\23CE';color:#888;font-style:normal}
#tree{overflow-x:auto;border:1px solid #ccc;padding:8px;min-height:80px}
.chart{overflow-x:auto}
.chart text{font:11px system-ui,sans-serif;fill:#333}
.chart path{fill:none;stroke:#333}
.chart [data-round]{cursor:pointer}
.chart .hit{fill:transparent}
.chart .bar{fill:#5b8dd6}
.chart .plain{fill:#fff;stroke:#5b8dd6}
.chart circle{fill:#111}
.chart .bar,.chart circle{pointer-events:none}
.chart .chosen .hit{fill:#ffe08a}
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
