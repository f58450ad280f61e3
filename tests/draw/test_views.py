"""What pictures are drawn from: which nodes of a tree, and how hidden characters show."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest

from draftwood.core import DraftTree
from draftwood.draw.views import TreeView, shown_nodes, tree_view, visible
from draftwood.errors import DraftwoodError


def comb(nodes: int, accepted: tuple[int, ...] = (0,)) -> TreeView:
    """A chain of nodes 1, 2, ... in which each has an empty sibling behind all of them."""
    parent = [-1, *range(nodes), *range(nodes)]
    size = len(parent)
    return TreeView(tuple("t" * size), tuple(parent), (0.5,) * size, (0.5,) * size, (0,) * size, accepted)


class TestShown:
    def test_everything_of_a_small_tree(self) -> None:
        assert shown_nodes(comb(3)) == (tuple(range(7)), 0)

    def test_the_best_of_a_large_one_and_how_many_are_hidden(self) -> None:
        nodes, hidden = shown_nodes(comb(10), limit=4)
        assert nodes[:5] == (0, 1, 2, 3, 4) and hidden == 21 - len(nodes)

    def test_the_accepted_path_and_its_rejection_wherever_they_stand(self) -> None:
        view = comb(10, accepted=tuple(range(9)))
        nodes, _ = shown_nodes(view, limit=2)
        assert set(nodes) == {*range(9), 9} and view.first_rejection == 9

    @pytest.mark.parametrize("limit", [0, 1, 3, 8, 40])
    def test_a_parent_is_among_them(self, limit: int) -> None:
        view = comb(9, accepted=(0, 1, 2, 3))
        nodes, hidden = shown_nodes(view, limit)
        assert all(view.parent[node] in nodes for node in nodes if node)
        assert len(nodes) + hidden == view.num_rows and list(nodes) == sorted(nodes)


class TestVisible:
    def test_signs(self) -> None:
        assert visible(" a\tb\n") == "␣a⇥b⏎"
        assert visible("") == "∅"

    def test_escapes_are_as_long_as_they_must_be(self) -> None:
        assert visible("\x00\x1b") == "\\x00\\x1b"
        assert visible("\u202e\u2028") == "\\u202e\\u2028"
        assert visible("\U000e0001") == "\\U000e0001"
        assert visible("\xa0\u3000") == "\\xa0\\u3000"

    def test_no_character_of_the_first_planes_hides(self) -> None:
        for code in (*range(0x3000), *range(0xE000, 0xE010), *range(0xFE00, 0x10000), 0xE0020):
            char = chr(code)
            shown = visible(char)
            assert shown and not shown.isspace()
            # Marks join the character before them, which shows them; all else that is invisible has a sign.
            assert all(unicodedata.category(one)[0] not in "CZ" for one in shown), hex(code)

    def test_letters_stay(self) -> None:
        for text in ("Zürich", "東京", "मुंबई", "a̐", "🪵"):
            assert visible(text) == text

    def test_ascii_is_quoted(self) -> None:
        assert visible("ä\n", ascii_only=True) == "'\\xe4\\n'"
        assert all(visible(chr(code), ascii_only=True).isascii() for code in range(0x500))


class TestView:
    TREE = DraftTree(
        parent=np.array([-1, 0, 0, 1], np.int32),
        token=np.array([5, 6, 7, 8], np.int64),
        depth=np.array([0, 1, 1, 2], np.int32),
        rank=np.array([0, 0, 1, 0], np.int32),
        logp=np.log([1.0, 0.5, 0.25, 0.125]),
    )

    def test_probabilities_are_a_nodes_own_and_its_paths(self) -> None:
        view = tree_view(self.TREE, [0, 1], str, correction=9)
        assert view.tokens == ("5", "6", "7", "8") and view.correction == "9"
        np.testing.assert_allclose(view.prob, [1.0, 0.5, 0.25, 0.25])
        np.testing.assert_allclose(view.prob_path, [1.0, 0.5, 0.25, 0.125])
        assert view.note(3) == "p 0.25 r0"

    def test_what_is_said_of_it(self) -> None:
        assert tree_view(self.TREE, [0, 1], str).summary() == "4 rows verified (root + 3), 1 draft accepted"
        assert tree_view(self.TREE.prefix(0), [0], str).summary() == "1 row verified (root + 0), 0 drafts accepted"

    @pytest.mark.parametrize("path", [[], [1], [0, 3], [0, 1, 2]])
    def test_a_path_that_is_none(self, path: list[int]) -> None:
        with pytest.raises(DraftwoodError, match="accepted path"):
            tree_view(self.TREE, path, str)
