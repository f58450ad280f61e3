"""Pictures of a draft tree: SVG, PNG and plain text.

Depth runs from left to right and the best child continues its parent's line, so the drafter's favourite is the top
line. What happened shows without colour too: accepted nodes have a thick solid frame, bold text and a tick, the first
rejection a dashed frame and a cross, all else a thin frame.
"""

from __future__ import annotations

import os
from html import escape
from pathlib import Path

from ..errors import UsageError
from ..files import write_file
from .layout import BOX_HEIGHT, BOX_WIDTH, FOOT, MARGIN, children_of, edges, lay_out, visible_title
from .png import draw_png
from .views import SHOWN_NODES, TreeView, shown_nodes, visible

TREE_CSS = (
    ".dw-tree text{font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:12px;fill:#111}"
    ".dw-tree .small{font-size:10px;fill:#444}"
    ".dw-tree rect{fill:#fff;stroke:#999;stroke-width:1}"
    ".dw-tree path{fill:none;stroke:#bbb;stroke-width:1}"
    ".dw-tree .paper{stroke:none}"
    ".dw-tree .root rect{stroke:#111;stroke-width:2}"
    ".dw-tree .ok rect{fill:#d9f2df;stroke:#137333;stroke-width:3}"
    ".dw-tree .ok .token{font-weight:bold}"
    ".dw-tree path.ok{stroke:#137333;stroke-width:3}"
    ".dw-tree .no rect{fill:#fbdcd9;stroke:#c5221f;stroke-width:2;stroke-dasharray:5 3}"
    ".dw-tree path.no{stroke:#c5221f;stroke-width:2;stroke-dasharray:5 3}"
)


def draw_svg(view: TreeView, *, title: str = "Draft tree", limit: int = SHOWN_NODES, styled: bool = True) -> str:
    """The tree as one SVG element; `styled` puts `TREE_CSS` inside, so that the file stands alone."""
    layout = lay_out(view, limit)
    place = {box.node: box for box in layout.boxes}
    label = escape(f"{visible_title(title)}: {view.summary()}")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="dw-tree" role="img" aria-label="{label}" '
        f'width="{layout.width}" height="{layout.height}" viewBox="0 0 {layout.width} {layout.height}">',
        f"<title>{escape(visible_title(title))}</title>",
        f"<style>{TREE_CSS}</style>" if styled else "",
        f'<rect class="paper" width="{layout.width}" height="{layout.height}"/>',
    ]
    for box in edges(layout):
        above = place[box.parent]
        x0, y0 = above.left + BOX_WIDTH, above.top + BOX_HEIGHT // 2
        kind = f' class="{box.kind}"' if box.kind else ""
        parts.append(f'<path{kind} d="M{x0} {y0}H{(x0 + box.left) // 2}V{box.top + BOX_HEIGHT // 2}H{box.left}"/>')
    for box in layout.boxes:
        mark = {"ok": "✓ ", "no": "✗ "}.get(box.kind, "")
        hint = f"{visible(view.tokens[box.node])} · {box.note} · path {view.prob_path[box.node]:.3g}"
        parts.append(
            f'<g class="{box.kind or "node"}"><title>{escape(hint)}</title>'
            f'<rect x="{box.left}" y="{box.top}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="4"/>'
            f'<text class="token" x="{box.left + 7}" y="{box.top + 15}">{escape(box.token)}</text>'
            f'<text class="small" x="{box.left + 7}" y="{box.top + 28}">{mark}{escape(box.note)}</text></g>'
        )
    top = layout.height - FOOT + 12
    parts += [
        f'<text class="small" x="{MARGIN}" y="{top + 16 * number}">{escape(line)}</text>'
        for number, line in enumerate(layout.footer)
    ]
    return "".join([*parts, "</svg>"])


def draw_text(view: TreeView, *, ascii_only: bool = False, limit: int = SHOWN_NODES) -> str:
    """The tree for a terminal, a line per node, without colour; ends with a line break."""
    shown = shown_nodes(view, limit)
    children = children_of(view, shown.nodes)
    tick, cross, tee, corner, bar, dots = "*x|`|~" if ascii_only else "✓✗├└│…"
    dash = "-" if ascii_only else "─"
    ok, no = set(view.accepted), view.first_rejection
    lines = [f"{tick} {visible(view.tokens[0], ascii_only=ascii_only)}  (root)"]
    stack = [(child, "", child == children[0][-1]) for child in reversed(children[0])]
    while stack:
        node, indent, last = stack.pop()
        mark = tick if node in ok else cross if node == no else " "
        token = visible(view.tokens[node], ascii_only=ascii_only)
        lines.append(f"{indent}{corner if last else tee}{dash}{mark} {token}  {view.note(node)}")
        below = children[node]
        deeper = indent + ("  " if last else f"{bar} ")
        stack += [(child, deeper, child == below[-1]) for child in reversed(below)]
    if shown.hidden:
        lines.append(f"{dots} {shown.hidden} more nodes not drawn")
    lines.append(view.summary())
    if view.correction is not None:
        lines.append(f"target's own token: {visible(view.correction, ascii_only=ascii_only)}")
    lines.append(f"{tick} accepted, {cross} first rejection; p: drafter's probability, r: rank (0 = best)")
    return "\n".join(lines) + "\n"


def save_picture(view: TreeView, path: str | os.PathLike[str], *, title: str = "Draft tree") -> None:
    """Write the tree as .svg or .png, whole or not at all.

    Raises `UsageError` for another ending, a folder that cannot be written, or PNG without matplotlib.
    """
    target = Path(path)
    if target.suffix == ".svg":
        data = draw_svg(view, title=title).encode()
    elif target.suffix == ".png":
        data = draw_png(view, title=title)
    else:
        raise UsageError(f"picture {target}: expected a name that ends in .svg or .png")
    write_file(target, data, UsageError)
