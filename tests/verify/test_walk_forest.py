"""Walks of many trees at once against one tree at a time, written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from host_copies import HostCopies
from trees import random_forest

from draftwood.core import DraftTree, Forest, Sampling, Verdicts
from draftwood.errors import NonFiniteLogitsError
from draftwood.tree.grow import root_forest
from draftwood.verify import RowsChooser, chooser, greedy, walk, walk_forest
from draftwood.verify.faults import FINITE, NOT_A_NUMBER, NOTHING, POSITIVE
from draftwood.verify.sampling import _on_device

VOCABULARY = 16
SAMPLINGS = [Sampling(), Sampling(0.9, seed=4), Sampling(), Sampling(1.4, seed=4, completion=1), Sampling(0.2, seed=9)]


def make(seed: int, requests: int = 5) -> tuple[Forest, torch.Tensor, np.ndarray, list[Sampling]]:
    """A random forest whose children the target likes, (T, V) logits, root positions and how requests sample."""
    rng = np.random.default_rng(seed)
    sizes = [int(size) for size in rng.choice([0, 1, 5, 30, 70, 140], requests)]
    forest = random_forest(rng, sizes, VOCABULARY, reach=5)
    logits = rng.normal(0, 1.0, (len(forest.parent), VOCABULARY))
    for start, tree in zip(forest.offsets.tolist(), [forest[index] for index in range(requests)], strict=False):
        for node in range(1, tree.num_rows):
            logits[start + tree.parent[node], tree.token[node]] += rng.exponential(7.0)
    samplings = [SAMPLINGS[index] for index in rng.integers(0, len(SAMPLINGS), requests)]
    return forest, torch.from_numpy(logits), rng.integers(0, 500, requests), samplings


def plain(tree: DraftTree, logits: torch.Tensor, sampling: Sampling, root_pos: int) -> tuple[list[int], int]:
    """The path and the pending token, one node at a time."""
    choose, path = chooser(sampling), [0]
    while True:
        token = int(choose(logits[path[-1]][None], np.array([root_pos + len(path)]))[0])
        below = [node for node in range(tree.num_rows) if tree.parent[node] == path[-1] and tree.token[node] == token]
        if not below:
            return path, token
        path += below


def decided(found: Verdicts, forest: Forest) -> list[tuple[list[int], int]]:
    return [(found.path(index, forest).tolist(), int(found.pending[index])) for index in range(len(forest))]


def part(forest: Forest, logits: torch.Tensor, index: int) -> torch.Tensor:
    return logits[int(forest.offsets[index]) : int(forest.offsets[index + 1])]


@pytest.mark.parametrize("everywhere", [None, True])
def test_random_forests_equal_every_tree_alone(everywhere: bool | None) -> None:
    lengths = []
    for seed in range(40):
        forest, logits, root_pos, samplings = make(seed, requests=1 + seed % 7)
        found = walk_forest(forest, logits, RowsChooser(samplings), root_pos, everywhere=everywhere)
        assert not found.faults and (np.diff(found.rows) > 0).all()
        for index, (path, pending) in enumerate(decided(found, forest)):
            own, pos = part(forest, logits, index), int(root_pos[index])
            assert (path, pending) == plain(forest[index], own, samplings[index], pos)
            alone = walk(forest[index], own, chooser(samplings[index]), pos)
            assert (path, pending) == (alone.path.tolist(), alone.pending)
            lengths.append(len(path))
    assert max(lengths) > 6 and 1 in lengths


def test_by_hand() -> None:
    """Two chains of two drafts and a root: one is accepted whole, one up to the first draft, one has none."""
    chain = DraftTree(
        np.array([-1, 0, 1], np.int32), np.array([1, 2, 3]), np.arange(3, dtype=np.int32),
        np.zeros(3, np.int32), np.array([0.0, -0.5, -1.0]),
    )  # fmt: skip
    forest = Forest.of([chain, root_forest([1])[0], chain])
    logits = torch.zeros(7, 5)
    logits[torch.arange(7), [2, 3, 4, 2, 2, 2, 0]] = 1.0
    for everywhere in (False, True):
        found = walk_forest(forest, logits, RowsChooser([Sampling()] * 3), np.array([0, 9, 5]), everywhere=everywhere)
        assert decided(found, forest) == [([0, 1, 2], 4), ([0], 2), ([0, 1], 2)]
        assert found.rows.tolist() == [0, 1, 2, 3, 4, 5] and found.offsets.tolist() == [0, 3, 4, 6]


BAD = {"nan": (torch.nan, "nan"), "inf": (torch.inf, "inf"), "nothing": (-torch.inf, "no token above -inf")}


@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("kind", BAD)
def test_a_fault_is_that_of_its_tree_alone(kind: str, everywhere: bool) -> None:
    bad, word = BAD[kind]
    spoilt = 0
    for seed in range(25):
        forest, logits, root_pos, samplings = make(seed)
        rng = np.random.default_rng(seed)
        good = decided(walk_forest(forest, logits, RowsChooser(samplings), root_pos), forest)
        named = {}
        for index in rng.choice(5, 2, replace=False).tolist():
            at = int(rng.integers(len(good[index][0])))
            row = logits[int(forest.offsets[index]) + good[index][0][at]]
            row[slice(None) if bad == -torch.inf else int(rng.integers(VOCABULARY))] = bad
            named[index] = int(root_pos[index]) + at + 1
            spoilt += at > 0
        found = walk_forest(forest, logits, RowsChooser(samplings), root_pos, everywhere=everywhere)
        assert found.faults.keys() == named.keys()
        for index, pos in named.items():
            assert isinstance(found.faults[index], NonFiniteLogitsError)
            assert f"decide position {pos} contain {word}:" in str(found.faults[index])
        expected = [([], -1) if index in named else verdict for index, verdict in enumerate(good)]
        assert decided(found, forest) == expected
    assert spoilt > 10


@pytest.mark.parametrize("everywhere", [False, True])
def test_unvisited_rows_do_not_matter(everywhere: bool) -> None:
    for seed in range(10):
        forest, logits, root_pos, samplings = make(seed)
        good = walk_forest(forest, logits, RowsChooser(samplings), root_pos)
        others = np.setdiff1d(np.arange(len(logits)), good.rows)
        logits[torch.from_numpy(others)] = torch.tensor([torch.nan, torch.inf, -torch.inf])[
            torch.from_numpy(others % 3)
        ][:, None].double()
        found = walk_forest(forest, logits, RowsChooser(samplings), root_pos, everywhere=everywhere)
        assert not found.faults and decided(found, forest) == decided(good, forest)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_rows_of_mixed_requests_are_chosen_as_alone(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(3)
    for rows in (1, 2, 9, 40):
        logits = torch.from_numpy(rng.normal(0, 2, (rows, VOCABULARY))).to(dtype)
        logits[rng.random((rows, VOCABULARY)) < 0.2] = -torch.inf
        logits[:, 3] = 1.0
        tree, pos = rng.integers(0, len(SAMPLINGS), rows), rng.integers(0, 90, rows)
        tokens, kinds = RowsChooser(SAMPLINGS)(logits, tree, pos)
        alone = [
            int(chooser(SAMPLINGS[which])(logits[row][None], np.array([at]))[0])
            for row, (which, at) in enumerate(zip(tree, pos, strict=True))
        ]
        assert tokens.tolist() == alone and kinds.tolist() == [FINITE] * rows
    assert len({tuple(RowsChooser([one])(logits, 0 * tree, pos)[0].tolist()) for one in SAMPLINGS}) == 4


def test_kinds_of_rows() -> None:
    rows = torch.tensor([[1.0, -torch.inf], [torch.nan, 1.0], [1.0, torch.inf], [-torch.inf, -torch.inf]])
    rows = torch.cat([rows, torch.tensor([[torch.inf, torch.nan], [-torch.inf, torch.nan]])])
    expected = [FINITE, NOT_A_NUMBER, POSITIVE, NOTHING, NOT_A_NUMBER, NOT_A_NUMBER]
    for sampling in SAMPLINGS:
        for dtype in (torch.float32, torch.bfloat16):
            _, kinds = RowsChooser([sampling])(rows.to(dtype), np.zeros(6, np.int64), np.arange(6))
            assert kinds.tolist() == expected


def test_a_cpu_chooses_for_visited_rows_only_one_depth_at_a_time() -> None:
    forest, logits, root_pos, samplings = make(11, requests=6)
    inner, calls = RowsChooser(samplings), list[list[tuple[int, int]]]()

    def counted(rows: torch.Tensor, trees: np.ndarray, pos: np.ndarray) -> torch.Tensor:
        assert len(rows) == len(trees) == len(pos)
        calls.append(list(zip(trees.tolist(), (pos - root_pos[trees]).tolist(), strict=True)))
        return inner(rows, trees, pos)

    found = walk_forest(forest, logits, counted, root_pos)
    committed = np.diff(found.offsets).tolist()
    depths = range(1, max(committed) + 1)
    assert calls == [[(tree, depth) for tree in range(6) if committed[tree] >= depth] for depth in depths]
    assert len(calls) > 2


def test_no_tree_is_no_verdict() -> None:
    nothing = root_forest([])
    for everywhere in (False, True):
        found = walk_forest(nothing, torch.zeros(0, 4), RowsChooser([]), np.empty(0, np.int64), everywhere=everywhere)
        assert found.rows.tolist() == [] and found.pending.tolist() == [] and not found.faults


@pytest.mark.parametrize("samplings", [SAMPLINGS, [Sampling()] * 5, [Sampling(0.7, seed=2)] * 5])
@pytest.mark.parametrize("faulty", [False, True])
def test_one_copy_brings_the_choices_to_the_host(
    monkeypatch: pytest.MonkeyPatch, samplings: list[Sampling], faulty: bool
) -> None:
    """The ways of an accelerator, which does not share the host's memory, run on a CPU."""
    forest, logits, root_pos, _ = make(2)
    if faulty:
        logits[int(forest.offsets[1])] = torch.nan
    by_kernel = decided(walk_forest(forest, logits, RowsChooser(samplings), root_pos), forest)
    monkeypatch.setattr("draftwood.verify.choose.greedy", lambda rows, pos: rows.argmax(dim=-1))
    monkeypatch.setattr("draftwood.verify.choose.gumbel", _on_device)
    with HostCopies() as copies:
        found = walk_forest(forest, logits, RowsChooser(samplings), root_pos, everywhere=True)
    assert copies.counts == {"cpu": 1}
    assert decided(found, forest) == by_kernel and len(found.faults) == faulty


def test_the_walk_by_nodes_would_be_many_copies() -> None:
    """Or the test above would show nothing."""
    forest, logits, root_pos, samplings = make(2)
    with HostCopies() as copies:
        walk_forest(forest, logits, RowsChooser(samplings), root_pos, everywhere=False)
    assert copies.counts.total() > 3
    assert greedy(logits, root_pos).tolist() == logits.argmax(-1).tolist()
