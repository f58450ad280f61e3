"""The exact law of what verifiers emit, by enumerating every branch; wrong rules must fail the same comparison."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from draftwood.core import DraftBlock, DraftTree, Verdict
from draftwood.tree.grow import grow
from draftwood.verify import recursive, walk
from draftwood.verify.oracle import Pick, Prefix, Target, branching_chooser, decoded_law, enumerate_law, plain_law

VOCABULARY = 4
NUM_TOKENS = 3


def random_target(seed: int, *, banned: bool = False) -> Target:
    """A law per prefix, fixed by the seed; `banned` gives one token probability zero."""

    def law(prefix: Prefix) -> np.ndarray:
        prob = np.random.default_rng([seed, len(prefix), *prefix]).dirichlet(np.full(VOCABULARY, 0.7))
        if banned:
            prob[sum(prefix) % VOCABULARY] = 0.0
        normalised: np.ndarray = prob / prob.sum()
        return normalised

    return law


def draft_rows(prefix: Prefix, seed: int, num_depths: int = 2) -> np.ndarray:
    """(D, V) marginals of a drafter that knows nothing of the target."""
    return np.random.default_rng([99, seed, *prefix]).dirichlet(np.ones(VOCABULARY), size=num_depths)


def block_of(marginals: np.ndarray) -> DraftBlock:
    order = np.argsort(-marginals, axis=-1, kind="stable")
    prob = np.take_along_axis(marginals, order, -1)
    logp = np.log(prob, out=np.full_like(prob, -np.inf), where=prob > 0).astype(np.float32)
    return DraftBlock(logp[None, :, None], order[None, :, None], np.array([len(marginals)]))


def best_first(seed: int, candidates: int, max_nodes: int) -> Callable[[Prefix, Pick], DraftTree]:
    def make(prefix: Prefix, pick: Pick) -> DraftTree:
        block = block_of(draft_rows(prefix, seed))
        return grow(block, 0, pending=prefix[-1], candidates=candidates, max_nodes=max_nodes, max_depth=2)

    return make


def by_walk(tree: DraftTree, logits: torch.Tensor, pick: Pick, root_pos: int) -> Verdict:
    return walk(tree, logits, branching_chooser(pick), root_pos)


def by_recursion(tree: DraftTree, logits: torch.Tensor, pick: Pick, root_pos: int) -> Verdict:
    return recursive(tree, logits, lambda weights, pos, counter: pick(weights), root_pos, temperature=1.0)


def by_ratio_test(tree: DraftTree, logits: torch.Tensor, pick: Pick, root_pos: int) -> Verdict:
    """The wrong rule: accept the best child with min(1, p/q) although it was not drawn from q; else draw (p - q)+."""
    node, path = 0, [0]
    while True:
        law = torch.softmax(logits[node], -1).numpy()
        children = np.flatnonzero(tree.parent == node)
        if not len(children):
            return Verdict(np.array(path), pick(law))
        token, q = int(tree.token[children[0]]), float(np.exp(tree.logp[children[0]] - tree.logp[node]))
        accept = min(1.0, law[token] / q)
        if pick(np.array([1 - accept, accept])) == 0:
            residual = law.copy()
            residual[token] = max(law[token] - q, 0.0)
            return Verdict(np.array(path), pick(residual))
        node = int(children[0])
        path.append(node)


def distance(a: dict[Prefix, float], b: dict[Prefix, float]) -> float:
    """The largest difference of two laws."""
    return max(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in a.keys() | b.keys())


SHAPES = [(1, 2), (2, 1), (2, 3), (3, 4), (4, 4)]


@pytest.mark.parametrize("verify", [by_walk, by_recursion])
@pytest.mark.parametrize(("candidates", "max_nodes"), SHAPES)
@pytest.mark.parametrize("banned", [False, True])
@pytest.mark.filterwarnings("ignore:divide by zero encountered in log")
def test_law_is_the_targets(verify: Callable[..., Verdict], candidates: int, max_nodes: int, banned: bool) -> None:
    target = random_target(candidates + max_nodes, banned=banned)
    law = decoded_law(target, best_first(1, candidates, max_nodes), verify, NUM_TOKENS)
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-12)
    assert distance(law, plain_law(target, NUM_TOKENS)) < 1e-9


def test_law_of_a_walk_over_the_whole_tree() -> None:
    target = random_target(12)
    law = decoded_law(target, best_first(1, 4, 20), by_walk, NUM_TOKENS)
    assert distance(law, plain_law(target, NUM_TOKENS)) < 1e-9


def test_wrong_ratio_rule_on_a_top_k_tree_is_caught() -> None:
    target = random_target(5)
    law = decoded_law(target, best_first(1, 2, 3), by_ratio_test, NUM_TOKENS)
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-12)
    assert distance(law, plain_law(target, NUM_TOKENS)) > 0.01


def sampled_tree(pick: Pick, marginals: np.ndarray, pending: int, kept: int) -> DraftTree:
    """Two depth-1 candidates drawn without replacement, the `kept` best-scored of them retained."""
    first = pick(marginals)
    rest = marginals.copy()
    rest[first] = 0.0
    drawn = [first, pick(rest)]
    drawn = sorted(drawn, key=lambda v: -marginals[v])[:kept] if kept < len(drawn) else drawn
    return DraftTree(
        np.array([-1] + [0] * len(drawn), np.int32),
        np.array([pending, *drawn]),
        np.array([0] + [1] * len(drawn), np.int32),
        np.arange(-1, len(drawn), dtype=np.int32).clip(0),
        np.array([0.0, *np.log(marginals[drawn])]),
    )


def by_drawn_order(marginals: np.ndarray) -> Callable[[DraftTree, torch.Tensor, Pick, int], Verdict]:
    """Speculative sampling that takes the children, in their order, for draws from q without replacement."""

    def verify(tree: DraftTree, logits: torch.Tensor, pick: Pick, root_pos: int) -> Verdict:
        residual = torch.softmax(logits[0], -1).numpy()
        q = marginals.copy()
        for child in range(1, tree.num_rows):
            token = int(tree.token[child])
            accept = min(1.0, residual[token] / q[token])
            if pick(np.array([1 - accept, accept])) == 1:
                return Verdict(np.array([0, child]), pick(torch.softmax(logits[child], -1).numpy()))
            residual = np.maximum(residual - q, 0.0)
            residual /= residual.sum()
            q[token] = 0.0
            q /= q.sum()
        return Verdict(np.array([0]), pick(residual))

    return verify


@pytest.mark.parametrize(("kept", "exact"), [(2, True), (1, False)])
def test_sampled_trees_are_biased_once_pruned_by_score(kept: int, exact: bool) -> None:
    """Draws from the proposal are exact as drawn; keep only the best-scored one and they are draws no more."""
    target = random_target(8)
    marginals = np.array([0.45, 0.3, 0.15, 0.1])
    law = decoded_law(
        target, lambda prefix, pick: sampled_tree(pick, marginals, prefix[-1], kept), by_drawn_order(marginals), 2
    )
    gap = distance(law, plain_law(target, 2))
    assert gap < 1e-9 if exact else gap > 0.01


@pytest.mark.parametrize("verify", [by_walk, by_recursion])
def test_both_accept_with_the_probability_of_the_children(verify: Callable[..., Verdict]) -> None:
    target = random_target(3)
    tree = best_first(2, 3, 3)((1,), lambda weights: 0)
    logits = torch.from_numpy(np.log(np.stack([target((1, node)) for node in range(tree.num_rows)])))
    law = enumerate_law(lambda pick: int(verify(tree, logits, pick, 0).path[-1] > 0))
    children = np.flatnonzero(tree.parent == 0)
    assert law[1] == pytest.approx(np.exp(logits[0].numpy())[tree.token[children]].sum(), abs=1e-12)


def phrases(prefix: Prefix) -> np.ndarray:
    """0 1 0 1 ... or 2 3 2 3 ...: the first token decides, nothing else is uncertain."""
    law = np.zeros(4)
    if not prefix:
        law[[0, 2]] = 0.5
    else:
        law[prefix[-1] ^ 1] = 1.0
    return law


@pytest.mark.filterwarnings("ignore:divide by zero encountered in log")
@pytest.mark.parametrize("verify", [by_walk, by_recursion])
def test_two_correlated_phrases_are_accepted_whole(verify: Callable[..., Verdict]) -> None:
    """Marginals give half to either phrase at each depth; independent picks per position keep 7/8 of a token of 3."""
    depth = 3
    marginals = np.array([[0.5, 0, 0.5, 0], [0, 0.5, 0, 0.5], [0.5, 0, 0.5, 0]])
    tree = grow(block_of(marginals), 0, pending=7, candidates=2, max_nodes=14, max_depth=depth)
    assert tree.num_nodes == 2 + 4 + 8
    paths: list[Prefix] = [()]
    for node in range(1, tree.num_rows):
        paths.append((*paths[tree.parent[node]], int(tree.token[node])))
    logits = torch.from_numpy(np.log(np.stack([phrases(path) for path in paths])))
    accepted = enumerate_law(lambda pick: len(verify(tree, logits, pick, 0).path) - 1)
    assert accepted == {depth: pytest.approx(1.0)}

    def one_pick_a_position(pick: Pick) -> int:
        proposal = [pick(row) for row in marginals]
        agreed = 0
        while agreed < depth and proposal[agreed] == pick(phrases(tuple(proposal[:agreed]))):
            agreed += 1
        return agreed

    independent = enumerate_law(one_pick_a_position)
    assert sum(length * prob for length, prob in independent.items()) == pytest.approx(1 / 2 + 1 / 4 + 1 / 8)


def test_plain_law_by_hand() -> None:
    law = plain_law(lambda prefix: np.array([0.25, 0.75]) if not prefix else np.array([1.0, 0.0]), 2)
    assert law == {(0, 0): 0.25, (1, 0): 0.75}
