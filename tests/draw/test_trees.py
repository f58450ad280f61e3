from __future__ import annotations

import struct
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from draftwood.core import DraftTree
from draftwood.draw import layout as draw
from draftwood.draw.layout import BOX_HEIGHT, COLUMN, lay_out
from draftwood.draw.png import draw_png
from draftwood.draw.trees import TREE_CSS, draw_svg, draw_text, save_picture
from draftwood.draw.views import TreeView, shown_nodes, tree_view, visible
from draftwood.errors import DraftwoodError, UsageError

SVG = "{http://www.w3.org/2000/svg}"


def small(tokens: tuple[str, ...] = ("The", " cat", " dog", " sat", " ran", " on"), **changes: object) -> TreeView:
    """root - 1 - 3 - 5, 1 - 4, root - 2; accepted 1 and 4, so nothing stands below: 4 has no child."""
    values: dict[str, object] = {
        "tokens": tokens, "parent": (-1, 0, 0, 1, 1, 3), "prob": (1, 0.5, 0.25, 0.4, 0.2, 0.75),
        "prob_path": (1, 0.5, 0.25, 0.2, 0.1, 0.15), "rank": (0, 0, 1, 0, 1, 0), "accepted": (0, 1, 4),
        "correction": " off",
    }  # fmt: skip
    return TreeView(**(values | changes))  # type: ignore[arg-type]


def wide(nodes: int, accepted: tuple[int, ...] = (0,)) -> TreeView:
    """`nodes` children of the root."""
    return TreeView(
        tuple(f"t{n}" for n in range(nodes + 1)), (-1,) + (0,) * nodes, (1.0,) + (0.001,) * nodes,
        (1.0,) + (0.001,) * nodes, tuple(range(nodes + 1)), accepted,
    )  # fmt: skip


def test_view_of_a_tree() -> None:
    tree = DraftTree(
        np.array([-1, 0, 1], np.int32), np.array([7, 8, 9]), np.array([0, 1, 2], np.int32),
        np.array([0, 0, 2], np.int32),
        np.log([1.0, 0.5, 0.125]),
    )  # fmt: skip
    view = tree_view(tree, np.array([0, 1]), str, correction=3)
    assert view.tokens == ("7", "8", "9")
    assert view.prob == pytest.approx((1.0, 0.5, 0.25))
    assert view.prob_path == pytest.approx((1.0, 0.5, 0.125))
    assert view.correction == "3"
    assert view.first_rejection == 2
    assert view.summary() == "3 rows verified (root + 2), 1 draft accepted"


def test_first_rejection_is_the_best_child_of_the_last_accepted() -> None:
    assert small().first_rejection is None
    assert small(accepted=(0, 1)).first_rejection == 3
    assert small(accepted=(0,)).first_rejection == 1


def test_a_broken_view_is_refused() -> None:
    with pytest.raises(DraftwoodError, match="accepted path"):
        small(accepted=(0, 4))
    with pytest.raises(DraftwoodError, match="parents"):
        small(parent=(-1, 0, 0, 1, 5, 3))
    with pytest.raises(DraftwoodError, match="one length"):
        small(rank=(0, 0))


def test_layout_by_hand() -> None:
    boxes = {box.node: box for box in lay_out(small()).boxes}
    column = {node: (box.left - draw.MARGIN) // COLUMN for node, box in boxes.items()}
    line = {node: (box.top - draw.MARGIN) // draw.ROW for node, box in boxes.items()}
    assert column == {0: 0, 1: 1, 2: 1, 3: 2, 4: 2, 5: 3}
    assert line == {0: 0, 1: 0, 3: 0, 5: 0, 4: 1, 2: 2}


@pytest.mark.parametrize("seed", range(5))
def test_no_two_boxes_overlap(seed: int) -> None:
    rng = np.random.default_rng(seed)
    parent = [-1] + [int(rng.integers(0, node)) for node in range(1, 65)]
    ones = (0.5,) * 65
    view = TreeView(("x",) * 65, tuple(parent), ones, ones, (0,) * 65, (0,))
    layout = lay_out(view)
    places = [(box.left, box.top) for box in layout.boxes]
    assert len(places) == len(set(places)) == 65
    assert all(box.top + BOX_HEIGHT <= layout.height - draw.FOOT for box in layout.boxes)
    assert all(box.left + draw.BOX_WIDTH <= layout.width for box in layout.boxes)


def test_svg_marks_what_happened() -> None:
    root = ElementTree.fromstring(draw_svg(small(accepted=(0, 1)), title="Round 7"))
    groups = {group.find(f"{SVG}text").text: group.get("class") for group in root.iter(f"{SVG}g")}  # type: ignore[union-attr]
    assert groups == {"The": "root", "␣cat": "ok", "␣sat": "no", "␣dog": "node", "␣ran": "node", "␣on": "node"}
    notes = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    assert "✓ p 0.50 r0" in notes and "✗ p 0.40 r0" in notes and "p 0.20 r1" in notes
    assert any("6 rows verified (root + 5), 1 draft accepted" in note for note in notes)
    assert any("target's own token: ␣off" in note for note in notes)
    assert len(list(root.iter(f"{SVG}path"))) == 5
    # Without colour: the accepted frame is thicker, the rejected one dashed.
    assert "stroke-dasharray" in TREE_CSS and ".ok rect{fill:#d9f2df;stroke:#137333;stroke-width:3}" in TREE_CSS


def test_nothing_is_drawn_over_the_accepted_path() -> None:
    root = ElementTree.fromstring(draw_svg(small(accepted=(0, 1))))
    kinds = [path.get("class") for path in root.iter(f"{SVG}path")]
    assert sorted(map(str, kinds[-2:])) == ["no", "ok"] and kinds[:-2] == [None] * 3


@pytest.mark.parametrize(
    "nasty", ["<script>alert(1)</script>", "a&b\"'", "]]>", "\x00\x1b[31m", "\ud800", "\u202e", "\n"]
)
def test_svg_escapes_text(nasty: str) -> None:
    view = small(tokens=(nasty,) * 6, correction=nasty)
    text = draw_svg(view, title=nasty)
    root = ElementTree.fromstring(text.encode())
    tokens = {node.text for node in root.iter(f"{SVG}text") if node.get("class") == "token"}
    assert tokens == {draw.shorten(visible(nasty))}
    assert "<script" not in text and "\x1b" not in text and "\u202e" not in text


@pytest.mark.parametrize(
    ("text", "shown", "plain"),
    [
        (" a b", "␣a␣b", "' a b'"), ("\r\n", "\\x0d⏎", "'\\r\\n'"), ("é", "é", "'\\xe9'"), ("", "∅", "''"),
        ("\u200b", "\\u200b", "'\\u200b'"), ("\u00a0", "\\xa0", "'\\xa0'"),
        ("\U000e0001", "\\U000e0001", "'\\U000e0001'"),
        ("日本", "日本", "'\\u65e5\\u672c'"), ("\ufffd", "\ufffd", "'\\ufffd'"),
    ],
)  # fmt: skip
def test_nothing_is_hidden(text: str, shown: str, plain: str) -> None:
    assert visible(text) == shown
    assert visible(text, ascii_only=True) == plain


def test_text_by_hand() -> None:
    assert draw_text(small(accepted=(0, 1))) == (
        "✓ The  (root)\n"
        "├─✓ ␣cat  p 0.50 r0\n"
        "│ ├─✗ ␣sat  p 0.40 r0\n"
        "│ │ └─  ␣on  p 0.75 r0\n"
        "│ └─  ␣ran  p 0.20 r1\n"
        "└─  ␣dog  p 0.25 r1\n"
        "6 rows verified (root + 5), 1 draft accepted\n"
        "target's own token: ␣off\n"
        "✓ accepted, ✗ first rejection; p: drafter's probability, r: rank (0 = best)\n"
    )


def test_ascii_text_is_ascii() -> None:
    text = draw_text(small(tokens=("é", " cat\n", "日", "a", "b", "c"), accepted=(0, 1)), ascii_only=True)
    assert text.isascii()
    assert "|-* ' cat\\n'  p 0.50 r0" in text and "| |-x 'a'" in text


def test_large_trees_are_cut_but_keep_the_path() -> None:
    view = wide(200, accepted=(0, 150))
    shown = shown_nodes(view)
    assert shown.nodes == (*range(65), 150)
    assert shown.hidden == 201 - 66
    assert "… 135 more nodes not drawn" in draw_text(view)
    assert "135 more nodes not drawn" in draw_svg(view)
    assert shown_nodes(wide(64)).hidden == 0
    assert "more nodes" not in draw_svg(wide(64))


def test_a_root_alone() -> None:
    view = TreeView(("x",), (-1,), (1.0,), (1.0,), (0,), (0,))
    assert view.summary() == "1 row verified (root + 0), 0 drafts accepted"
    ElementTree.fromstring(draw_svg(view))
    assert draw_text(view).startswith("✓ x  (root)\n")


def test_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    layout = lay_out(small())
    data = draw_png(small(tokens=("$x^2$", "日本", "\x07", " sat", "\U0001f600", " on"), accepted=(0, 1)))
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert abs(width - layout.width * 1.5) <= 1 and abs(height - layout.height * 1.5) <= 1
    path = tmp_path / "tree.png"
    save_picture(small(), path)
    assert path.read_bytes()[:4] == b"\x89PNG"


def test_png_without_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match=r"draftwood\[plot\]"):
        draw_png(small())


def test_saving(tmp_path: Path) -> None:
    save_picture(small(), tmp_path / "t.svg")
    ElementTree.parse(tmp_path / "t.svg")
    with pytest.raises(UsageError, match=r"\.svg or \.png"):
        save_picture(small(), tmp_path / "t.pdf")
    with pytest.raises(UsageError, match="cannot be written"):
        save_picture(small(), tmp_path / "none" / "t.svg")
    assert [path.name for path in tmp_path.iterdir()] == ["t.svg"]
