"""Growth against numbers typed in from the reference, against listing every prefix, and against its contract."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from draftwood.core import DraftBlock, DraftTree
from draftwood.errors import DraftwoodError, UsageError
from draftwood.tree.grow import GrowLimits, grow, grow_forest, root_tree
from draftwood.tree.layout import check_integrity
from draftwood.tree.oracle import all_prefixes, grow_by_sorting

EVERYTHING = 99


def fill(shape: tuple[int, ...], t: int, low: float, high: float) -> np.ndarray:
    """The deterministic fill that golden vectors are defined by: a 32-bit hash of the flat index."""
    j = np.arange(int(np.prod(shape)), dtype=np.uint64)
    mask = np.uint64(0xFFFFFFFF)
    x = (j * np.uint64(2654435761) + np.uint64((t + 1) * 97531)) & mask
    x ^= x >> np.uint64(15)
    x = (x * np.uint64(2246822519)) & mask
    x ^= x >> np.uint64(13)
    return (low + (high - low) * x.astype(np.float64) / 2**32).reshape(shape).astype(np.float32)


def block_of(logp: np.ndarray, ids: np.ndarray, depths: list[int] | None = None) -> DraftBlock:
    """A block of one request from (D, P, K) arrays."""
    return DraftBlock(logp[None].astype(np.float32), ids[None], np.array(depths or [len(logp)], np.int64))


def random_block(rng: np.random.Generator, *, conditional: bool, quantised: bool, holes: bool = False) -> DraftBlock:
    """Sorted random scores; quantised ones are full of ties, holes are -inf tails."""
    num_depths, width = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    shape = (num_depths, width if conditional else 1, width)
    logp = -rng.exponential(1.0, shape)
    if quantised:
        logp = np.round(logp * 2) / 2
    logp = -np.sort(-logp, axis=-1)
    if holes:
        logp[np.arange(width) >= rng.integers(0, width + 1, shape[:2])[..., None]] = -np.inf
    ids = np.argsort(rng.random((*shape[:2], 7)), axis=-1)[..., :width]
    return block_of(logp, ids)


def assert_same(a: DraftTree, b: DraftTree) -> None:
    for name in ("parent", "token", "depth", "rank", "logp"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)


def golden_block() -> DraftBlock:
    logits = fill((3, 6), 200, -2, 2).astype(np.float64)
    logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    order = np.argsort(-logp, axis=-1)
    return block_of(np.take_along_axis(logp, order, -1)[:, None], order[:, None])


def test_fill_probe() -> None:
    np.testing.assert_allclose(fill((4,), 0, 0, 1), [0.261269, 0.190661, 0.708948, 0.125665], atol=1e-6)


def test_golden_tree() -> None:
    """The ten nodes and weights of dflash.md 10.3, whose parents are node numbers (0 = root)."""
    tree = grow(golden_block(), 0, pending=5, candidates=6, max_nodes=10, max_depth=3)
    nodes = list(zip(tree.token[1:].tolist(), tree.depth[1:].tolist(), tree.parent[1:].tolist(), strict=True))
    assert nodes == [
        (0, 1, 0), (1, 1, 0), (4, 1, 0), (4, 2, 1), (4, 2, 2), (0, 2, 1), (0, 2, 2), (5, 1, 0), (4, 2, 3), (0, 2, 3),
    ]  # fmt: skip
    weights = [
        -1.180164, -1.267773, -1.592841, -2.013595, -2.101204, -2.128417, -2.216027, -2.371338, -2.426272, -2.541094,
    ]  # fmt: skip
    np.testing.assert_allclose(tree.logp[1:], weights, atol=2e-6)
    assert tree.token[0] == 5
    check_integrity(tree)


def test_golden_tree_is_complete_at_258_nodes() -> None:
    block = golden_block()
    tree = grow(block, 0, pending=5, candidates=6, max_nodes=1024, max_depth=3)
    assert tree.num_nodes == 6 + 36 + 216
    assert_same(tree, grow_by_sorting(block, 0, pending=5, candidates=6, max_nodes=1024, max_depth=3))
    greedy_stop = 1.651030  # Phi of the first 12 nodes
    np.testing.assert_allclose(tree.gains[:12].sum(), greedy_stop, atol=2e-6)


@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("holes", [False, True])
def test_equals_sorting_every_prefix(conditional: bool, quantised: bool, holes: bool) -> None:
    rng = np.random.default_rng(7)
    ties = 0
    for _ in range(150):
        block = random_block(rng, conditional=conditional, quantised=quantised, holes=holes)
        choice = {
            "pending": 3,
            "candidates": int(rng.integers(1, 6)),
            "max_nodes": int(rng.integers(0, 40)),
            "max_depth": int(rng.integers(0, 6)),
        }
        tree = grow(block, 0, **choice)
        check_integrity(tree)
        assert_same(tree, grow_by_sorting(block, 0, **choice))
        ties += int((np.diff(tree.logp[1:]) == 0).sum())
    assert not quantised or ties > 100


def test_all_scores_equal_go_in_lexicographic_order() -> None:
    """Score 0 everywhere ties every prefix with every other one: the order is that of the rank tuples alone."""
    block = block_of(np.zeros((3, 1, 3)), np.tile(np.arange(3), (3, 1, 1)))
    tree = grow(block, 0, pending=0, candidates=3, max_nodes=1024, max_depth=3)
    tuples: list[tuple[int, ...]] = [()]
    for node in range(1, tree.num_rows):
        tuples.append((*tuples[tree.parent[node]], int(tree.rank[node])))
    assert tuples == sorted(tuples) and len(tuples) == 1 + 3 + 9 + 27


@pytest.mark.parametrize("conditional", [False, True])
def test_smaller_trees_are_prefixes(conditional: bool) -> None:
    rng = np.random.default_rng(11)
    for _ in range(40):
        block = random_block(rng, conditional=conditional, quantised=True)
        largest = grow(block, 0, pending=1, candidates=4, max_nodes=64, max_depth=4)
        for num_nodes in range(largest.num_nodes + 1):
            small = grow(block, 0, pending=1, candidates=4, max_nodes=num_nodes, max_depth=4)
            assert_same(small, largest.prefix(num_nodes))


def test_best_of_all_prefix_closed_sets() -> None:
    """By a second route: no set of n nodes closed under parents has a larger sum of probabilities."""
    rng = np.random.default_rng(3)
    block = random_block(rng, conditional=True, quantised=False)
    while block.logp.shape[1:] != (2, 2, 2):
        block = random_block(rng, conditional=True, quantised=False)
    prefixes = all_prefixes(block, 0, candidates=2, max_depth=2)
    names = sorted(prefixes)
    best = dict.fromkeys(range(len(names) + 1), -1.0)
    for bits in range(2 ** len(names)):
        chosen = {name for i, name in enumerate(names) if bits >> i & 1}
        if all(len(name) == 1 or name[:-1] in chosen for name in chosen):
            best[len(chosen)] = max(best[len(chosen)], sum(np.exp(prefixes[name]) for name in chosen))
    gains = grow(block, 0, pending=0, candidates=2, max_nodes=6, max_depth=2).gains
    for num_nodes, value in best.items():
        np.testing.assert_allclose(gains[:num_nodes].sum(), value, atol=1e-12)


def test_chain_and_degenerate_shapes() -> None:
    rng = np.random.default_rng(5)
    logp = -np.sort(rng.exponential(1.0, (6, 1, 4)), axis=-1)
    ids = np.tile(np.arange(4), (6, 1, 1))
    block = block_of(logp, ids)
    chain = grow(block, 0, pending=9, candidates=1, max_nodes=1024, max_depth=99)
    assert chain.parent.tolist() == [-1, 0, 1, 2, 3, 4, 5] and chain.token[1:].tolist() == [0] * 6
    assert grow(block, 0, pending=9, candidates=4, max_nodes=0, max_depth=6).num_nodes == 0
    assert grow(block, 0, pending=9, candidates=4, max_nodes=5, max_depth=0).num_nodes == 0
    shrunk = block_of(logp, ids, [2])
    assert grow(shrunk, 0, pending=9, candidates=4, max_nodes=1024, max_depth=6).num_nodes == 4 + 16
    no_depth = block_of(np.zeros((0, 1, 4)), np.zeros((0, 1, 4), np.int64), [0])
    assert_same(grow(no_depth, 0, pending=9, candidates=4, max_nodes=5, max_depth=6), root_tree(9))


def test_second_request_reads_its_own_scores() -> None:
    rng = np.random.default_rng(6)
    logp = -np.sort(rng.exponential(1.0, (2, 3, 1, 3)), axis=-1).astype(np.float32)
    ids = np.tile(np.array([4, 5, 6]), (2, 3, 1, 1))
    both = DraftBlock(logp, ids, np.array([3, 2]))
    alone = DraftBlock(logp[1:], ids[1:], np.array([2]))
    choice = {"pending": 0, "candidates": 3, "max_nodes": 9, "max_depth": 3}
    assert_same(grow(both, 1, **choice), grow(alone, 0, **choice))


def forest_block(
    rng: np.random.Generator, requests: int, num_depths: int, parents: int, width: int, *, quantised: bool
) -> DraftBlock:
    """Random scores of several requests, some of shrunken depth."""
    shape = (requests, num_depths, parents, width)
    logp = -np.sort(rng.exponential(1.0, shape), axis=-1)
    if quantised:
        logp = np.round(logp * 2) / 2
    ids = np.argsort(rng.random((*shape[:3], 9)), axis=-1)[..., :width]
    return DraftBlock(logp.astype(np.float32), ids, rng.integers(0, num_depths + 1, requests))


@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize("quantised", [False, True])
def test_a_forest_equals_each_tree_alone(conditional: bool, quantised: bool) -> None:
    """Requests of one block under limits of their own, each against the tree found by sorting and against `grow`."""
    rng = np.random.default_rng([conditional, quantised])
    flat = 0
    for _ in range(60):
        width = int(rng.integers(1, 5))
        block = forest_block(
            rng, int(rng.integers(1, 7)), int(rng.integers(1, 5)), width if conditional else 1, width,
            quantised=quantised,
        )  # fmt: skip
        limits = [
            GrowLimits(
                int(rng.integers(50)), int(rng.integers(1, 6)), int(rng.integers(0, 40)), int(rng.integers(0, 6))
            )
            for _ in block.depths
        ]
        forest = grow_forest(block, limits)
        assert len(forest) == len(limits) and forest.source is block and not forest.faulty
        for index, limit in enumerate(limits):
            check_integrity(forest[index])
            assert_same(forest[index], grow_by_sorting(block, index, **limit._asdict()))
            assert_same(forest[index], grow(block, index, **limit._asdict()))
            flat += forest[index].num_nodes == 0
    assert flat > 20


def test_a_fault_in_a_forest_is_named_from_its_own_tree() -> None:
    rng = np.random.default_rng(4)
    block = forest_block(rng, 4, 3, 1, 3, quantised=False)
    block.depths[:] = 3
    limits = [GrowLimits(0, 3, 30, 3)] * 4
    block.logp[2, 1, 0, 2] = -0.0625
    with pytest.raises(DraftwoodError, match=rf"-0\.0625 of token {block.ids[2, 1, 0, 2]} \(depth 2, .* rank 2\)"):
        grow_forest(block, limits)
    limits[2] = GrowLimits(0, 3, 30, 1)  # growth no longer reads the faulty entry
    assert grow_forest(block, limits).num_rows.tolist() == [31, 31, 4, 31]


def test_read_only_and_strided_scores() -> None:
    rng = np.random.default_rng(8)
    block = random_block(rng, conditional=False, quantised=True)
    choice = {"pending": 0, "candidates": 3, "max_nodes": 9, "max_depth": 3}
    expected = grow(block, 0, **choice)
    wide = np.repeat(block.logp, 2, axis=-1)
    strided = DraftBlock(wide[..., ::2], block.ids, block.depths)
    strided.ids.flags.writeable = False
    assert_same(grow(strided, 0, **choice), expected)


@pytest.mark.parametrize(
    ("scores", "ids", "named"),
    [
        ([-0.5, np.nan, -2.0], [1, 2, 3], "nan"),
        ([np.nan, -1.0, -2.0], [1, 2, 3], "nan"),
        ([0.25, -1.0, -2.0], [1, 2, 3], "0.25"),
        ([-2.0, -1.0, -3.0], [1, 2, 3], "-1.0"),
        ([-0.5, -1.0, -2.0], [1, 2, 1], "token 1"),
    ],
)
def test_scores_that_break_the_contract_are_named(scores: list[float], ids: list[int], named: str) -> None:
    block = block_of(np.array([[scores]]), np.array([[ids]]))
    with pytest.raises(DraftwoodError, match=named):
        grow(block, 0, pending=0, candidates=3, max_nodes=8, max_depth=1)


def test_filler_at_minus_infinity_is_fine() -> None:
    block = block_of(np.array([[[-0.5, -np.inf, -np.inf]]]), np.array([[[1, 0, 0]]]))
    assert grow(block, 0, pending=0, candidates=3, max_nodes=8, max_depth=1).token.tolist() == [0, 1]


def test_wrong_arguments() -> None:
    block = golden_block()
    with pytest.raises(UsageError, match=r"max_nodes 1025: expected 0 to 1024"):
        grow(block, 0, pending=0, candidates=3, max_nodes=1025, max_depth=1)
    with pytest.raises(UsageError, match=r"candidates 0: expected at least 1"):
        grow(block, 0, pending=0, candidates=0, max_nodes=5, max_depth=1)
    with pytest.raises(DraftwoodError, match="2 parent ranks"):
        grow(block_of(np.zeros((1, 2, 3)), np.zeros((1, 2, 3), np.int64)), 0,
             pending=0, candidates=3, max_nodes=5, max_depth=1)  # fmt: skip


def test_works_without_a_place_to_cache() -> None:
    """An installation in which no cache folder can be used still works: numba is left a locator for zips only."""
    program = (
        "from draftwood.tree import grow, layout\n"
        "layout.warm_up()\n"  # the smaller kernel: seconds instead of tens
        "print(type(grow._grow._cache).__name__)\n"
    )
    source = Path(__file__).resolve().parents[2] / "src"
    environment = {**os.environ, "PYTHONPATH": str(source), "NUMBA_CACHE_LOCATOR_CLASSES": "ZipCacheLocator"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "NullCache", done.stderr
