"""The PNG of a draft tree, by matplotlib (extra `plot`)."""

from __future__ import annotations

import io
from typing import Any

from ..errors import UsageError
from .layout import BOX_HEIGHT, BOX_WIDTH, FOOT, MARGIN, Box, edges, lay_out, visible_title
from .views import SHOWN_NODES, TreeView

DPI = 144
_STYLE: dict[str, dict[str, Any]] = {
    "": {"facecolor": "white", "edgecolor": "#999999", "linewidth": 0.8},
    "root": {"facecolor": "white", "edgecolor": "#111111", "linewidth": 1.6},
    "ok": {"facecolor": "#d9f2df", "edgecolor": "#137333", "linewidth": 2.2},
    "no": {"facecolor": "#fbdcd9", "edgecolor": "#c5221f", "linewidth": 1.5, "linestyle": (0, (4, 2))},
}


def draw_png(view: TreeView, *, title: str = "Draft tree", limit: int = SHOWN_NODES) -> bytes:
    """The tree as PNG bytes, laid out like the SVG; raises `UsageError` if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.font_manager import FontProperties, findfont, get_font
        from matplotlib.patches import FancyBboxPatch
    except ImportError as error:
        raise UsageError("a PNG needs matplotlib: pip install 'draftwood[plot]', or write .svg") from error
    layout = lay_out(view, limit)
    mono = FontProperties(family="DejaVu Sans Mono")
    font = get_font(findfont(mono))

    def known(text: str) -> str:
        """Characters that the font lacks, as escapes: an empty box would say less."""
        return "".join(char if font.get_char_index(ord(char)) else f"\\u{ord(char):04x}" for char in text)

    figure = Figure(figsize=(layout.width / 96, layout.height / 96), dpi=DPI)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, layout.width), ylim=(layout.height, 0))
    axes.axis("off")
    place = {box.node: box for box in layout.boxes}
    for box in edges(layout):
        _edge(axes, place[box.parent], box)
    for box in layout.boxes:
        style = {"boxstyle": "round,pad=0,rounding_size=4", **_STYLE[box.kind]}
        axes.add_patch(FancyBboxPatch((box.left, box.top), BOX_WIDTH, BOX_HEIGHT, zorder=2, **style))
        mark = {"ok": "✓ ", "no": "✗ "}.get(box.kind, "")
        weight = "bold" if box.kind == "ok" else "normal"
        _write(axes, box.left + 7, box.top + 11, known(box.token), 8.5, mono, weight)
        _write(axes, box.left + 7, box.top + 25, mark + box.note, 7, mono)
    for number, line in enumerate(layout.footer):
        _write(axes, MARGIN, layout.height - FOOT + 10 + 16 * number, known(line), 7, mono)
    data = io.BytesIO()
    figure.savefig(data, format="png", metadata={"Title": visible_title(title)})
    return data.getvalue()


def _edge(axes: Any, above: Box, box: Box) -> None:
    x0, x1 = above.left + BOX_WIDTH, box.left
    y0, y1 = above.top + BOX_HEIGHT / 2, box.top + BOX_HEIGHT / 2
    middle = (x0 + x1) / 2
    style = _STYLE[box.kind if box.kind in ("ok", "no") else ""]
    axes.plot(
        [x0, middle, middle, x1],
        [y0, y0, y1, y1],
        color=style["edgecolor"] if box.kind else "#bbbbbb",
        linewidth=style["linewidth"],
        linestyle=style.get("linestyle", "solid"),
        zorder=1,
    )


def _write(axes: Any, x: float, y: float, text: str, size: float, font: Any, weight: str = "normal") -> None:
    """Plain text: a dollar sign starts no formula."""
    axes.text(
        x,
        y,
        text,
        fontsize=size,
        fontfamily=font.get_family(),
        fontweight=weight,
        va="center",
        parse_math=False,
        zorder=3,
    )
