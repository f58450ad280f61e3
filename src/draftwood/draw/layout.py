"""Where the nodes of a draft tree stand on a page, and what is written in them: the same for SVG and PNG."""

from __future__ import annotations

from dataclasses import dataclass

from .views import SHOWN_NODES, TreeView, shown_nodes, visible

BOX_WIDTH, BOX_HEIGHT = 112, 34
COLUMN, ROW = 136, 42
MARGIN, FOOT = 14, 58
TOKEN_CHARS = 13


@dataclass(frozen=True, slots=True)
class Box:
    """Where a node is drawn, in pixels, and what stands in it."""

    node: int
    parent: int
    left: int
    top: int
    kind: str
    """`root`, `ok` (accepted), `no` (first rejection) or empty."""
    token: str
    note: str
    """Probability and rank."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A tree laid out on a page."""

    boxes: tuple[Box, ...]
    """In node order."""
    width: int
    height: int
    footer: tuple[str, ...]


def lay_out(view: TreeView, limit: int = SHOWN_NODES) -> Layout:
    """Boxes of the shown nodes: a leaf has a line of its own, a parent stands on the line of its best child."""
    shown = shown_nodes(view, limit)
    children = children_of(view, shown.nodes)
    depth, line, lines = {0: 0}, {}, 0
    stack = [0]
    while stack:
        node = stack.pop()
        if not children[node]:
            at = node
            while at not in line:
                line[at] = lines
                at = view.parent[at] if at and children[view.parent[at]][0] == at else at
            lines += 1
        for child in reversed(children[node]):
            depth[child] = depth[node] + 1
            stack.append(child)
    boxes = []
    for node in shown.nodes:
        kind = "root" if node == 0 else "no" if node == view.first_rejection else "ok" if node in view.accepted else ""
        left, top = MARGIN + COLUMN * depth[node], MARGIN + ROW * line[node]
        note = "root" if node == 0 else view.note(node)
        boxes.append(Box(node, view.parent[node], left, top, kind, shorten(visible(view.tokens[node])), note))
    footer = [view.summary() + (f"; … {shown.hidden} more nodes not drawn" if shown.hidden else "")]
    if view.correction is not None:
        footer.append(f"target's own token: {shorten(visible(view.correction), 40)}")
    footer.append("✓ accepted   ✗ first rejection   p: drafter's probability, r: rank (0 = best)")
    width = max(2 * MARGIN + COLUMN * max(depth.values()) + BOX_WIDTH, 480)
    return Layout(tuple(boxes), width, 2 * MARGIN + ROW * lines + FOOT, tuple(footer))


def children_of(view: TreeView, nodes: tuple[int, ...]) -> dict[int, list[int]]:
    """Children among `nodes`, best first."""
    children: dict[int, list[int]] = {node: [] for node in nodes}
    for node in nodes[1:]:
        children[view.parent[node]].append(node)
    return children


def edges(layout: Layout) -> list[Box]:
    """Boxes with an edge to their parent, those that mean something last, so that nothing is drawn over them."""
    return sorted((box for box in layout.boxes if box.parent >= 0), key=lambda box: box.kind != "")


def visible_title(text: str) -> str:
    """`text` as a heading: blanks stay, everything hidden becomes a sign."""
    return " ".join(visible(word) for word in text.split(" ") if word)


def shorten(text: str, chars: int = TOKEN_CHARS) -> str:
    """At most `chars` characters, cut with an ellipsis."""
    return text if len(text) <= chars else text[: chars - 1] + "…"
