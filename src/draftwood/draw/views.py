"""What pictures are drawn from: trees and rounds with tokens as text. Plain values, no model and no tokenizer."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..core import ROOT_NODE, DraftTree
from ..errors import DraftwoodError

SHOWN_NODES = 64
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})


@dataclass(frozen=True, slots=True)
class TreeView:
    """A verified tree as a reader sees it; the tuples have one entry per node, the root (pending token) first."""

    tokens: tuple[str, ...]
    parent: tuple[int, ...]
    """-1 for the root; parents stand before their children."""
    prob: tuple[float, ...]
    """Drafter's probability of the node's token at its depth; 1 for the root."""
    prob_path: tuple[float, ...]
    """Product along the path from the root."""
    rank: tuple[int, ...]
    """Rank among the candidates of its depth, 0 = best."""
    accepted: tuple[int, ...]
    """Nodes of the accepted path, the root first."""
    correction: str | None = None
    """The target's own token behind the accepted path."""

    def __post_init__(self) -> None:
        sizes = {len(column) for column in (self.tokens, self.parent, self.prob, self.prob_path, self.rank)}
        if len(sizes) != 1 or not self.tokens:
            raise DraftwoodError(f"tree view with columns of {sorted(sizes)} nodes: expected one length above 0")
        rooted = self.parent[0] == -1 and all(0 <= above < node for node, above in enumerate(self.parent) if node)
        follows = self.accepted[:1] == (ROOT_NODE,) and all(
            self.parent[node] == above for above, node in zip(self.accepted, self.accepted[1:], strict=False)
        )
        if not rooted or not follows:
            raise DraftwoodError("tree view whose parents or accepted path do not start at the root")

    @property
    def num_rows(self) -> int:
        """Rows verified, the root counted."""
        return len(self.tokens)

    @property
    def first_rejection(self) -> int | None:
        """The drafter's best continuation of the accepted path, which the target refused; None if it had none."""
        last = self.accepted[-1]
        return next((node for node, above in enumerate(self.parent) if above == last), None)

    def note(self, node: int) -> str:
        """Probability and rank of a node."""
        return f"p {self.prob[node]:.2f} r{self.rank[node]}"

    def summary(self) -> str:
        """One line: rows verified and drafts accepted."""
        drafts = len(self.accepted) - 1
        return (
            f"{self.num_rows} {_plural(self.num_rows, 'row')} verified (root + {self.num_rows - 1}), "
            f"{drafts} {_plural(drafts, 'draft')} accepted"
        )


@dataclass(frozen=True, slots=True)
class RoundView:
    """One round of a generation for the report."""

    index: int
    text: str
    """What the round added to the text."""
    rows: int
    """Rows verified, the root counted."""
    committed: int
    drafted: bool
    context: int
    """L before the round."""
    seconds: float | None = None
    """Measured, else predicted; None when neither is known."""
    tree: TreeView | None = None
    """None where the tree was not kept."""


class Shown(NamedTuple):
    """Which nodes of a large tree are drawn."""

    nodes: tuple[int, ...]
    """In node order, the root first; a node's parent is always among them."""
    hidden: int
    """Nodes left out."""


def tree_view(
    tree: DraftTree, path: Sequence[int] | np.ndarray, text_of: Callable[[int], str], correction: int | None = None
) -> TreeView:
    """The view of a verified tree; `path` is the accepted path, root first, `text_of` decodes one token id."""
    own = np.exp(tree.logp - np.where(tree.parent >= 0, tree.logp[tree.parent], 0.0))
    return TreeView(
        tokens=tuple(text_of(int(token)) for token in tree.token),
        parent=tuple(tree.parent.tolist()),
        prob=tuple(own.tolist()),
        prob_path=tuple(np.exp(tree.logp).tolist()),
        rank=tuple(tree.rank.tolist()),
        accepted=tuple(int(node) for node in path),
        correction=None if correction is None else text_of(correction),
    )


def shown_nodes(view: TreeView, limit: int = SHOWN_NODES) -> Shown:
    """The root, the `limit` best nodes, the accepted path and the first rejection, wherever these stand."""
    wanted = set(range(min(limit, view.num_rows - 1) + 1)) | set(view.accepted)
    if view.first_rejection is not None:
        wanted.add(view.first_rejection)
    return Shown(tuple(sorted(wanted)), view.num_rows - len(wanted))


def visible(text: str, *, ascii_only: bool = False) -> str:
    """`text` on one line with nothing hidden: blanks, line ends, tabs, control and invisible characters get signs.

    With `ascii_only` it is quoted instead, and whatever is not printable ASCII is escaped.
    """
    if ascii_only:
        return ascii(text)
    signs = {" ": "␣", "\n": "⏎", "\t": "⇥"}
    shown = []
    for char in text:
        code, category = ord(char), unicodedata.category(char)
        if char in signs:
            shown.append(signs[char])
        elif category in _HIDDEN_CATEGORIES:
            shown.append(f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
        else:
            shown.append(char)
    return "".join(shown) or "∅"


def _plural(count: int, noun: str) -> str:
    return noun if count == 1 else f"{noun}s"
