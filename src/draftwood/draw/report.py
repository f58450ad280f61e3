"""A whole generation as one self-contained HTML page.

The text is coloured by round; a click, or the keyboard, on a round shows its tree; two charts show width and time over
the rounds. Style and script stand inside and a content policy forbids everything else, so the page opens without a
network and sends nothing.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from html import escape

from ..errors import UsageError
from ..files import write_file
from .layout import visible_title
from .report_assets import PAGE_CSS, PAGE_JS
from .trees import TREE_CSS, draw_svg
from .views import RoundView, visible

HUES = 6
CHART_HEIGHT, CHART_LEFT, BAR = 120, 52, 9


def html_report(
    rounds: Sequence[RoundView],
    *,
    title: str,
    prompt: str = "",
    first_text: str = "",
    facts: Mapping[str, str] | None = None,
    opened: int | None = None,
) -> str:
    """The page for one generation.

    `first_text` is what the token of the prefill, which belongs to no round, added to the text; `facts` are shown as
    a table (model, policy, machine, ...); the tree of round `opened` is shown at first. All text is escaped, and
    control characters are made visible.
    """
    heading = escape(visible_title(title))
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    rows = [(escape(visible_title(name)), escape(visible_title(value))) for name, value in (facts or {}).items()]
    table = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in rows)
    table = f"<table>{table}</table>" if rows else ""
    shown = [_round_parts(item) for item in rounds]
    shown_first = "" if opened is None else f' data-open="{opened}"'
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>{heading}</title><style>{PAGE_CSS}{TREE_CSS}</style></head><body{shown_first}>",
        f"<header><h1>{heading}</h1>{table}</header>",
        f"<section><h2>Prompt</h2><pre>{_running_text(prompt)}</pre></section>" if prompt else "",
        '<div id="pair"><section><h2>Text by round</h2>',
        '<p class="hint">Click a round, or use Tab, arrow keys and Enter, to see its tree.</p>',
        '<p class="key">Each colour is what one round committed; a line before it marks where it begins.</p>',
        f'<pre id="text"><span class="first" title="token of the prefill">{_running_text(first_text)}</span>',
        *(span for span, _ in shown),
        "</pre></section>",
        '<section id="beside"><h2>Tree</h2><p><button id="back">&lsaquo; previous</button> ',
        '<button id="next">next &rsaquo;</button></p>',
        '<div id="tree" aria-live="polite" tabindex="0"><p>No round chosen.</p></div>',
        '<p class="key">Green and bold: accepted. Red and dashed: where the model chose another token.</p>',
        "</section></div>",
        f"<section><h2>Rounds</h2>{_charts(rounds)}</section>",
        *(panel for _, panel in shown),
        "<noscript><p>Trees need JavaScript; this page loads nothing from elsewhere.</p></noscript>",
        f"<script>{PAGE_JS}</script></body></html>\n",
    ]
    return "".join(parts)


def save_report(path: str | os.PathLike[str], page: str) -> None:
    """Write the page, whole or not at all; raises `UsageError` if the folder cannot be written."""
    write_file(path, page.encode("utf-8", "backslashreplace"), UsageError)


def _running_text(text: str) -> str:
    """Escaped; line ends and blanks stay and the former get a sign, all else that is hidden is made visible."""
    pieces = []
    for char in text:
        if char == "\n":
            pieces.append('<i class="nl"></i>\n')
        elif char in " \t":
            pieces.append(char)
        else:
            pieces.append(escape(visible(char)))
    return "".join(pieces)


def _round_parts(item: RoundView) -> tuple[str, str]:
    """What the round added to the text, as a button, and the panel that it opens."""
    label = escape(f"round {item.index}: {item.committed} committed, {item.rows} rows")
    span = (
        f'<span class="round h{item.index % HUES}" role="button" tabindex="0" data-round="{item.index}" '
        f'aria-label="{label}: {escape(visible(item.text))}" title="{label}">{_running_text(item.text)}</span>'
    )
    kind = "drafted" if item.drafted else "did not draft"
    time = "" if item.seconds is None else f", {item.seconds * 1e3:.1f} ms"
    head = (
        f"Round {item.index}: {kind}, {item.rows} rows verified, {item.committed} committed, "
        f"context {item.context}{time}"
    )
    tree = "<p>The tree of this round was not kept.</p>"
    if item.tree is not None:
        tree = draw_svg(item.tree, title=f"Draft tree of round {item.index}", styled=False)
    return span, f'<template id="round-{item.index}"><p>{escape(head)}</p><div>{tree}</div></template>'


def _charts(rounds: Sequence[RoundView]) -> str:
    if not rounds:
        return "<p>No rounds: the whole output came with the prefill.</p>"
    charts = _chart(rounds, [float(item.rows) for item in rounds], "rows verified", [item.committed for item in rounds])
    if any(item.seconds is not None for item in rounds):
        charts += _chart(rounds, [(item.seconds or 0.0) * 1e3 for item in rounds], "milliseconds", None)
    return charts


def ticks(top: float) -> list[float]:
    """Round numbers from 0 to `top`, three to six of them, for an axis."""
    power = 10.0 ** math.floor(math.log10(top))
    step = next(power * part for part in (0.2, 0.5, 1.0, 2.0) if top / (power * part) < 6)
    return [step * number for number in range(int(top / step + 1e-9) + 1)]


def _chart(rounds: Sequence[RoundView], values: list[float], unit: str, dots: Sequence[int] | None) -> str:
    """Bars over rounds; `dots` (committed tokens) share the axis. Every bar chooses its round."""
    top = max(max(values), 1e-9)
    base, width = CHART_HEIGHT + 14, CHART_LEFT + BAR * len(rounds) + 90
    skip = '<i class="skip">&nbsp;</i> did not draft' if any(not item.drafted for item in rounds) else ""
    dotted = '<i class="dots">&bull;</i> tokens committed' if dots else ""
    parts = [
        f'<p class="key"><i class="bars">&nbsp;</i> {unit}{skip}{dotted}</p>',
        f'<div class="chart"><svg width="{width}" height="{base + 34}" role="img" aria-label="{unit} over rounds">',
        f'<path d="M{CHART_LEFT} 10V{base}H{width - 84}"/>',
        f'<text x="{CHART_LEFT}" y="{base + 28}">round</text>',
    ]
    for tick in ticks(top):
        at_y = base - CHART_HEIGHT * tick / top
        parts.append(f'<text x="{CHART_LEFT - 6}" y="{at_y + 4:.1f}" text-anchor="end">{tick:g}</text>')
        parts.append(f'<path class="grid" d="M{CHART_LEFT - 3} {at_y:.1f}H{width - 84}"/>')
    for at, (item, value) in enumerate(zip(rounds, values, strict=True)):
        left, tall = CHART_LEFT + 1 + BAR * at, CHART_HEIGHT * value / top
        parts.append(
            f'<g data-round="{item.index}"><title>round {item.index}: {value:.4g} {unit}</title>'
            f'<rect class="hit" x="{left}" y="10" width="{BAR}" height="{base - 10}"/>'
            f'<rect class="bar{"" if item.drafted else " plain"}" x="{left + 1}" y="{base - tall:.1f}" '
            f'width="{BAR - 2}" height="{tall:.1f}"/>'
            + (
                f'<circle cx="{left + BAR / 2}" cy="{base - CHART_HEIGHT * dots[at] / top:.1f}" r="2.5"/>'
                if dots
                else ""
            )
            + "</g>"
        )
        if item.index % 10 == 0:
            parts.append(f'<text x="{left}" y="{base + 13}">{item.index}</text>')
    return "".join([*parts, "</svg></div>"])
