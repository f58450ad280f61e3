"""The suffix drafter against scanning the text, by hand, and against the contract of drafters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import suffix_oracle as oracle
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood.core import DraftTree
from draftwood.draft.base import Committed, Drafter, DraftRequest
from draftwood.draft.continuations import no_counts, reliabilities
from draftwood.draft.suffix import SuffixDrafter
from draftwood.errors import UsageError
from draftwood.tree.layout import check_integrity

TEXTS = st.integers(1, 4).flatmap(lambda letters: st.lists(st.integers(0, letters - 1), min_size=2, max_size=30))


def ids(text: str | list[int]) -> np.ndarray:
    return np.array([ord(letter) for letter in text] if isinstance(text, str) else text, np.int64)


def wanted(request: int, pending: int, context_len: int, **changes: Any) -> DraftRequest:
    choice = {"block_size": 33, "candidates": 8, "max_nodes": 24, "max_depth": 32, **changes}
    return DraftRequest(request, pending, context_len, **choice)


def commit(drafter: Drafter, request: int, tokens: str | list[int]) -> None:
    drafter.commit(Committed((request,), np.array([0, len(tokens)]), ids(tokens), None))


def opened(text: str, request: int = 0) -> SuffixDrafter:
    """A drafter that knows `text` and has been delivered it."""
    drafter = SuffixDrafter()
    drafter.open(request, ids(text), len(text))
    commit(drafter, request, text)
    return drafter


def spell(tree: DraftTree, node: int) -> str:
    """The drafted letters from the root to `node`."""
    letters = ""
    while node > 0:
        letters, node = chr(tree.token[node]) + letters, int(tree.parent[node])
    return letters


def words(tree: DraftTree) -> list[str]:
    return [spell(tree, node) for node in range(1, tree.num_rows)]


def assert_same(tree: DraftTree, expected: DraftTree) -> None:
    for name in ("parent", "token", "depth", "rank"):
        np.testing.assert_array_equal(getattr(tree, name), getattr(expected, name), err_msg=name)
    np.testing.assert_allclose(tree.logp, expected.logp, rtol=0, atol=1e-12)


@settings(deadline=None, max_examples=60)
@given(
    text=TEXTS,
    prompt=st.integers(0, 30),
    candidates=st.integers(1, 4),
    max_nodes=st.integers(0, 20),
    max_depth=st.integers(0, 6),
    skip=st.integers(1, 4),
)
def test_equals_scanning(
    text: list[int], prompt: int, candidates: int, max_nodes: int, max_depth: int, skip: int
) -> None:
    """Trees and learned counts, with a draft at every `skip`-th token of the output."""
    prompt = min(prompt, len(text) - 1)
    drafter, counts = SuffixDrafter(floor=0.01), no_counts()
    drafter.open(5, ids(text[:prompt]), len(text))
    commit(drafter, 5, text[:prompt])
    for length in range(prompt, len(text)):
        oracle.learn(text[:length], text[length], counts)
        if length % skip == 0:
            sizes = {"candidates": candidates, "max_nodes": max_nodes, "max_depth": max_depth}
            tree = drafter.propose([wanted(5, text[length], length, **sizes)])[0]
            check_integrity(tree)
            reliability = reliabilities(counts)
            assert_same(tree, oracle.grow(text[: length + 1], reliability, floor=0.01, **sizes))
        commit(drafter, 5, [text[length]])
        np.testing.assert_allclose(drafter.counts, counts, rtol=1e-12)


def test_by_hand() -> None:
    """Behind `ab` stood `c` twice and `x` once: reliability 0.55 of a match of 2 tokens, shared 2 to 1."""
    drafter = opened("abcabcabxa")
    tree = drafter.propose([wanted(0, ord("b"), 10, max_depth=1)])[0]
    assert words(tree) == ["c", "x"] and tree.rank.tolist() == [0, 0, 1]
    np.testing.assert_allclose(np.exp(tree.logp[1:]), [0.55 * 2 / 3, 0.55 / 3])


def test_a_shorter_suffix_adds_what_the_longest_does_not_know() -> None:
    """`ab` was followed by `c`; `b` also by `d`, which gets 0.25 of the escaped 0.45."""
    drafter = opened("abcbda")
    tree = drafter.propose([wanted(0, ord("b"), 6, max_depth=1)])[0]
    assert words(tree) == ["c", "d"]
    np.testing.assert_allclose(np.exp(tree.logp[1:]), [0.55, 0.45 * 0.25])


def test_of_equally_frequent_tokens_the_later_comes_first() -> None:
    tree = opened("axayb").propose([wanted(0, ord("a"), 5, max_depth=1)])[0]
    assert words(tree) == ["y", "x"] and tree.logp[1] == tree.logp[2]


def test_a_loop_is_drafted_beyond_the_end_of_the_text() -> None:
    tree = opened("abcabcab").propose([wanted(0, ord("c"), 8, candidates=1, max_nodes=12)])[0]
    assert words(tree)[-1] == "abcabcabcabc"


def test_nothing_repeats_nothing_is_proposed() -> None:
    drafter = opened("abcdef")
    assert drafter.propose([wanted(0, ord("g"), 6)])[0].num_nodes == 0
    empty = opened("")
    assert empty.propose([wanted(0, ord("g"), 0)])[0].token.tolist() == [ord("g")]


def test_limits() -> None:
    drafter = opened("abcdabceabcfabcdabce" * 4)
    position = 80
    tree = drafter.propose([wanted(0, ord("a"), position, max_nodes=1024, candidates=2, block_size=4)])[0]
    assert tree.depth.max() == 3 and np.bincount(tree.parent[1:]).max() == 2
    assert np.exp(tree.logp).min() >= 0.003
    for nodes in (0, 1, 5):
        small = drafter.propose([wanted(0, ord("a"), position, max_nodes=nodes, candidates=2, block_size=4)])[0]
        assert_same(small, tree.prefix(nodes))
    assert drafter.propose([wanted(0, ord("a"), position, max_depth=0)])[0].num_nodes == 0


def test_reliabilities_follow_the_output() -> None:
    """Output that never does what its own past suggests makes matches worthless, and the other way round."""
    liar, loop = SuffixDrafter(), SuffixDrafter()
    rng = np.random.default_rng(0)
    for drafter, text in ((liar, rng.integers(0, 50, 3000)), (loop, np.arange(3000) % 50)):
        drafter.open(0, ids([]), 3000)
        commit(drafter, 0, text.tolist())
    assert reliabilities(liar.counts)[0, 1].max() < 0.15
    assert reliabilities(loop.counts)[0, 8, 0] > 0.99


def test_known_text_teaches_nothing() -> None:
    drafter = opened("abcabcabcabc")
    assert not drafter.counts.any()
    commit(drafter, 0, "a")
    taught = drafter.counts.copy()
    assert taught.any()
    drafter.close(0)
    drafter.open(0, ids("abcabcabcabca"), 20)  # preempted: what it said before is known text now
    commit(drafter, 0, "abcabcabcabca")
    np.testing.assert_array_equal(drafter.counts, taught)


def test_a_preempted_request_proposes_as_before() -> None:
    drafter = opened("abcabdabcab")
    before = drafter.propose([wanted(0, ord("c"), 11)])[0]
    drafter.close(0)
    drafter.counts[:] = 0  # the pending token was learned from, and is again
    drafter.open(0, ids("abcabdabcab"), 30)
    for chunk in ("abca", "bdabc", "ab"):
        commit(drafter, 0, chunk)
    after = drafter.propose([wanted(0, ord("c"), 11)])[0]
    assert words(before) == words(after)
    assert before.num_nodes > 0


def test_requests_do_not_read_each_others_text() -> None:
    drafter = opened("abcabcab", request=0)
    drafter.open(1, ids("xyxyx"), 9)
    commit(drafter, 1, "xyxyx")
    forest = drafter.propose([wanted(1, ord("y"), 5), wanted(0, ord("c"), 8)])
    assert set("".join(words(forest[0]))) == {"x", "y"} and set("".join(words(forest[1]))) == set("abc")
    for tree in (forest[0], forest[1]):
        check_integrity(tree)


def test_long_random_work_of_many_requests() -> None:
    """Chunks, skipped drafts and growth across several doublings; twice the same calls, twice the same trees."""

    def run() -> tuple[list[np.ndarray], np.ndarray]:
        rng = np.random.default_rng(4)
        drafter, trees = SuffixDrafter(), []
        texts = [rng.integers(0, 12, 700).tolist() for _ in range(5)]
        done = dict.fromkeys(range(5), 20)
        for request, text in enumerate(texts):
            drafter.open(request, ids(text[:20]), 700)
            commit(drafter, request, text[:20])
        while min(done.values()) < 650:
            asked = [request for request in range(5) if rng.random() < 0.7]
            forest = drafter.propose([wanted(r, texts[r][done[r]], done[r]) for r in asked])
            for index in range(len(asked)):
                check_integrity(forest[index])
            trees.append(np.stack([forest.token, forest.parent]))
            sizes = rng.integers(1, 6, 5)
            chunks = [texts[r][done[r] : done[r] + sizes[r]] for r in range(5)]
            offsets = np.cumsum([0, *(len(chunk) for chunk in chunks)])
            drafter.commit(
                Committed(tuple(range(5)), offsets, ids([token for chunk in chunks for token in chunk]), None)
            )
            done = {r: done[r] + len(chunks[r]) for r in range(5)}
        return trees, drafter.counts

    (trees, counts), (trees_again, counts_again) = run(), run()
    np.testing.assert_array_equal(counts, counts_again)
    for tree, again in zip(trees, trees_again, strict=True):
        np.testing.assert_array_equal(tree, again)


def test_asking_twice_changes_nothing() -> None:
    drafter = opened("abcabcab")
    first = drafter.propose([wanted(0, ord("c"), 8)])
    counts = drafter.counts.copy()
    assert_same(drafter.propose([wanted(0, ord("c"), 8)])[0], first[0])
    np.testing.assert_array_equal(drafter.counts, counts)


def test_no_requests() -> None:
    assert len(SuffixDrafter().propose([])) == 0


def test_holes_in_the_text_are_refused() -> None:
    drafter = opened("abcabcab")
    with pytest.raises(UsageError, match="block at 9: expected 8, its context"):
        drafter.propose([wanted(0, ord("c"), 9)])
    drafter.propose([wanted(0, ord("c"), 8)])
    with pytest.raises(UsageError, match=f"token {ord('d')} at position 8: expected {ord('c')}"):
        drafter.propose([wanted(0, ord("d"), 8)])
    with pytest.raises(UsageError, match=f"token {ord('d')} at position 8: expected {ord('c')}"):
        commit(drafter, 0, "d")
    early = SuffixDrafter()
    early.open(0, ids("abcd"), 9)
    commit(early, 0, "ab")
    with pytest.raises(UsageError, match="block at 2: expected it behind the known text, which has 4 tokens"):
        early.propose([wanted(0, ord("c"), 2)])


def test_wrong_use() -> None:
    drafter = opened("abab")
    with pytest.raises(UsageError, match="request 7: expected one that is open"):
        commit(drafter, 7, "a")
    with pytest.raises(UsageError, match="request 7: expected one that is open"):
        drafter.propose([wanted(7, 1, 0)])
    with pytest.raises(UsageError, match="is open already"):
        drafter.open(0, ids("a"), 1)
    with pytest.raises(UsageError, match="distinct"):
        drafter.propose([wanted(0, 1, 4), wanted(0, 1, 4)])
    with pytest.raises(UsageError, match="block size 34: expected 2 to 33"):
        drafter.propose([wanted(0, 1, 4, block_size=34)])
    with pytest.raises(UsageError, match="0 candidates"):
        drafter.propose([wanted(0, 1, 4, candidates=0)])
    with pytest.raises(UsageError, match="max_nodes 1025"):
        drafter.propose([wanted(0, 1, 4, max_nodes=1025)])
    with pytest.raises(UsageError, match="block_size 1"):
        SuffixDrafter(block_size=1)
    with pytest.raises(UsageError, match=r"floor 0\.0"):
        SuffixDrafter(floor=0.0)
    drafter.close(0)
    drafter.close(0)
    drafter.open(0, ids("a"), 1)
