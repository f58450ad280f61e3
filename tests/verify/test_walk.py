"""The walk on hand-made and random trees, bad logits, log-probabilities, seeds and shapes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from draftwood.core import DraftBlock, DraftTree, Forest, Sampling, Verdict
from draftwood.errors import NonFiniteLogitsError
from draftwood.tree.grow import grow, root_tree
from draftwood.verify import Chooser, CounterDraw, Gumbel, chooser, greedy, recursive, walk, walk_forest
from draftwood.verify.walk import Path, judged, verdict

VOCABULARY = 12
SHAPES = [(1, 0), (1, 99), (2, 5), (4, 20), (12, 200)]


def target_row(prefix: tuple[int, ...], seed: int) -> np.ndarray:
    """(V,) float64 logits, a function of the tokens so far."""
    return np.random.default_rng([seed, *prefix]).normal(0, 1.5, VOCABULARY)


def logits_of(tree: DraftTree, prefix: tuple[int, ...], seed: int) -> torch.Tensor:
    """(M, V): every node under its own path; `prefix` ends with the pending token."""
    paths = [prefix]
    for node in range(1, tree.num_rows):
        paths.append((*paths[tree.parent[node]], int(tree.token[node])))
    return torch.from_numpy(np.stack([target_row(path, seed) for path in paths]))


def drafted(prefix: tuple[int, ...], seed: int, candidates: int, max_nodes: int, max_depth: int = 5) -> DraftTree:
    """A tree of a drafter that sees the target's first step through noise, and guesses behind it."""
    rng = np.random.default_rng([7, seed, *prefix])
    scores = rng.normal(0, 1.5, (5, VOCABULARY))
    scores[0] = target_row(prefix, seed) + rng.normal(0, 0.5, VOCABULARY)
    logp = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    order = np.argsort(-logp, axis=-1)
    block = DraftBlock(
        np.take_along_axis(logp, order, -1)[None, :, None].astype(np.float32), order[None, :, None], np.array([5])
    )
    return grow(block, 0, pending=prefix[-1], candidates=candidates, max_nodes=max_nodes, max_depth=max_depth)


def decode(choose: Chooser, shape: tuple[int, int], seed: int, num_tokens: int = 24) -> list[int]:
    """Round by round over trees of one shape."""
    tokens = [3, int(choose(torch.from_numpy(target_row((3,), seed))[None], np.array([1])))]
    while len(tokens) <= num_tokens:
        tree = drafted(tuple(tokens), seed, *shape)
        found = walk(tree, logits_of(tree, tuple(tokens), seed), choose, len(tokens) - 1)
        tokens += [*tree.token[found.path[1:]].tolist(), found.pending]
    return tokens[: num_tokens + 1]


def hand_made() -> DraftTree:
    """Root 7; children 3 and 4; 3 has children 4 and 5."""
    return DraftTree(
        np.array([-1, 0, 0, 1, 1], np.int32),
        np.array([7, 3, 4, 4, 5]),
        np.array([0, 1, 1, 2, 2], np.int32),
        np.array([0, 0, 1, 0, 1], np.int32),
        np.array([0.0, -0.5, -1.0, -1.5, -2.0]),
    )


def peaked(*favourites: int) -> torch.Tensor:
    logits = torch.zeros(len(favourites), 8, dtype=torch.float64)
    logits[torch.arange(len(favourites)), list(favourites)] = 5.0
    return logits


@pytest.mark.parametrize(
    ("favourites", "path", "pending"),
    [
        ((3, 5, 0, 0, 6), [0, 1, 4], 6),
        ((4, 0, 2, 0, 0), [0, 2], 2),
        ((5, 5, 5, 5, 5), [0], 5),
        ((3, 7, 0, 0, 0), [0, 1], 7),
    ],
)
def test_by_hand(favourites: tuple[int, ...], path: list[int], pending: int) -> None:
    found = walk(hand_made(), peaked(*favourites), greedy, 40)
    assert found.path.tolist() == path and found.pending == pending
    assert found.committed == len(path) and found.logp is None


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, seed=5), Sampling(1.3, seed=6, completion=2)])
def test_text_does_not_depend_on_the_tree(sampling: Sampling) -> None:
    """The same text for no draft, chain and trees, greedy and seeded; and equal to one token at a time."""
    choose = chooser(sampling)
    tokens = [3]
    while len(tokens) <= 24:
        tokens.append(int(choose(torch.from_numpy(target_row(tuple(tokens), 1))[None], np.array([len(tokens)]))))
    for shape in SHAPES:
        assert decode(choose, shape, seed=1) == tokens


def test_text_depends_on_the_seed() -> None:
    texts = {tuple(decode(Gumbel(1.0, seed, completion), (4, 20), 1)) for seed in (1, 2) for completion in (0, 1)}
    assert len(texts) == 4


@pytest.mark.parametrize("choose", [greedy, Gumbel(1.0, 3)])
def test_a_tree_that_contains_the_chain_accepts_at_least_as_much(choose: Chooser) -> None:
    longer = 0
    for seed in range(50):
        prefix = (3, seed % VOCABULARY)
        chain = drafted(prefix, seed, 1, 99)
        tree = drafted(prefix, seed, 6, 150)
        spine = [0]
        for node in range(1, tree.num_rows):
            if tree.parent[node] == spine[-1] and tree.rank[node] == 0:
                spine.append(node)
        contained = len(spine) - 1
        short = walk(chain.prefix(contained), logits_of(chain.prefix(contained), prefix, seed), choose, 1)
        wide = walk(tree, logits_of(tree, prefix, seed), choose, 1)
        assert wide.committed >= short.committed
        longer += wide.committed > short.committed
    assert longer > 10


def all_rows(tree: DraftTree, logits: torch.Tensor, choose: Chooser, root_pos: int, want_logp: bool) -> Verdict:
    """One tree by the way of accelerators; a fault is raised."""
    forest = Forest.of([tree])
    found = walk_forest(
        forest, logits, lambda rows, trees, pos: judged(rows, choose(rows, pos)), np.array([root_pos]), everywhere=True
    )
    for fault in found.faults.values():
        raise fault
    return verdict(tree, logits, Path(found.path(0, forest).tolist(), int(found.pending[0])), want_logp)


@pytest.mark.parametrize("choose", [greedy, Gumbel(0.9, 3)])
@pytest.mark.parametrize("want_logp", [False, True])
def test_all_rows_at_once_gives_the_same(choose: Chooser, want_logp: bool) -> None:
    """The way of accelerators, run on a CPU, against the node-by-node way."""
    for seed in range(30):
        tree = drafted((3, 4), seed, 6, 60)
        logits = logits_of(tree, (3, 4), seed)
        found = walk(tree, logits, choose, 9, want_logp=want_logp)
        other = all_rows(tree, logits, choose, 9, want_logp)
        assert found.path.tolist() == other.path.tolist() and found.pending == other.pending
        assert (found.logp is None) == (not want_logp)
        if found.logp is not None and other.logp is not None:
            np.testing.assert_array_equal(found.logp, other.logp)


def by_walk(tree: DraftTree, logits: torch.Tensor, *, want_logp: bool = False) -> Verdict:
    return walk(tree, logits, greedy, 40, want_logp=want_logp)


def by_rows(tree: DraftTree, logits: torch.Tensor, *, want_logp: bool = False) -> Verdict:
    return all_rows(tree, logits, greedy, 40, want_logp)


def by_recursion(tree: DraftTree, logits: torch.Tensor, *, want_logp: bool = False) -> Verdict:
    return recursive(tree, logits, CounterDraw(1), 40, temperature=0.01, want_logp=want_logp)


@pytest.mark.parametrize("verify", [by_walk, by_rows, by_recursion])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_bad_logits_at_a_visited_node_name_the_position(verify: Callable[..., Verdict], bad: float) -> None:
    for node, pos in ((0, 41), (1, 42), (4, 43)):
        logits = peaked(3, 5, 0, 0, 6)
        logits[node, 2] = bad
        with pytest.raises(NonFiniteLogitsError, match=rf"position {pos} contain (nan|inf)"):
            verify(hand_made(), logits)


@pytest.mark.parametrize("verify", [by_walk, by_rows, by_recursion])
def test_bans_are_fine_and_unvisited_rows_do_not_matter(verify: Callable[..., Verdict]) -> None:
    logits = peaked(3, 5, 0, 0, 6)
    logits[2] = torch.nan
    logits[3] = torch.inf
    logits[[0, 1, 4], 1] = -torch.inf
    assert verify(hand_made(), logits).path.tolist() == [0, 1, 4]
    logits[4] = -torch.inf
    with pytest.raises(NonFiniteLogitsError, match="position 43 contain no token above -inf"):
        verify(hand_made(), logits)


@pytest.mark.parametrize("verify", [by_walk, by_rows, by_recursion])
def test_log_probabilities_are_the_targets_own(verify: Callable[..., Verdict]) -> None:
    """By hand: one logit of 5 among eight, the others 0."""
    found = verify(hand_made(), peaked(3, 5, 0, 0, 6).float(), want_logp=True)
    assert found.logp is not None and found.logp.dtype == np.float64
    np.testing.assert_allclose(found.logp, 5 - np.log(np.exp(5) + 7), rtol=0, atol=1e-9)
    assert len(found.logp) == found.committed == 3


def test_a_mask_id_is_an_ordinary_token() -> None:
    """Whatever id the drafter uses as its mask: drafted it can be accepted, drawn it can be pending."""
    mask_id = 5
    found = walk(hand_made(), peaked(3, mask_id, 0, 0, mask_id), greedy, 0)
    assert found.path.tolist() == [0, 1, 4] and found.pending == mask_id


def test_prefill_row_is_a_root_alone() -> None:
    found = walk(root_tree(9), peaked(4), greedy, 6, want_logp=True)
    assert found.path.tolist() == [0] and found.pending == 4 and found.committed == 1


def test_only_visited_rows_are_chosen_for() -> None:
    """On a CPU the cost of sampling follows the committed length, not the rows."""
    seen: list[int] = []

    def counting(logits: torch.Tensor, pos: np.ndarray) -> torch.Tensor:
        seen.extend(pos.tolist())
        return greedy(logits, pos)

    walk(hand_made(), peaked(3, 5, 0, 0, 6), counting, 40)
    assert seen == [41, 42, 43]


def test_recursive_is_a_function_of_the_seed() -> None:
    tree = drafted((3, 4), 1, 6, 40)
    logits = logits_of(tree, (3, 4), 1)

    def run(seed: int, completion: int = 0) -> tuple[list[int], int]:
        found = recursive(tree, logits, CounterDraw(seed, completion), 9, temperature=1.0)
        return found.path.tolist(), found.pending

    assert [run(seed) for seed in range(20)] == [run(seed) for seed in range(20)]
    assert len({(tuple(path), pending) for path, pending in map(run, range(40))}) > 5
    assert [run(1, completion) for completion in range(10)] != [run(2, completion) for completion in range(10)]
