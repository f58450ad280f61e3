"""The compiled walk of greedy requests against numpy's argmax, one node at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from trees import random_forest

from draftwood.core import Forest, Sampling
from draftwood.tree.grow import root_forest
from draftwood.verify import RowsChooser, greedy, walk_forest
from draftwood.verify.greedy import walk_greedily

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
ZERO = np.zeros(1, np.int64)


def forest_and_logits(seed: int, vocabulary: int, dtype: torch.dtype) -> tuple[Forest, torch.Tensor]:
    """Trees of which the target likes some children, with many equal logits among the others."""
    rng = np.random.default_rng(seed)
    forest = random_forest(rng, [int(size) for size in rng.choice([0, 3, 20, 70], 4)], vocabulary, reach=4)
    logits = np.round(rng.normal(0, 2, (len(forest.parent), vocabulary)))
    for start, tree in zip(forest.offsets.tolist(), [forest[index] for index in range(4)], strict=False):
        for node in range(1, tree.num_rows):
            logits[start + tree.parent[node], tree.token[node]] += np.round(rng.exponential(9.0))
    return forest, torch.from_numpy(logits).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocabulary", [9, 1024, 2500])
def test_paths_are_those_of_the_plain_walk(dtype: torch.dtype, vocabulary: int) -> None:
    longest = 0
    for seed in range(12):
        forest, logits = forest_and_logits(seed, vocabulary, dtype)
        found = walk_greedily(forest, logits, np.arange(4))
        choice = logits.double().numpy().argmax(axis=-1)
        for index in range(4):
            tree, start, path = forest[index], int(forest.offsets[index]), [0]
            while below := [
                node
                for node in range(tree.num_rows)
                if tree.parent[node] == path[-1] and tree.token[node] == choice[start + path[-1]]
            ]:
                path += below
            assert found.path(index, forest).tolist() == path
            assert found.pending[index] == choice[start + path[-1]]
            longest = max(longest, len(path))
    assert longest > 3


def likeliest(row: torch.Tensor) -> int | str:
    """The token that a walk takes from one row (V,), or the message of its fault."""
    found = walk_greedily(root_forest([0]), row[None], ZERO)
    return str(found.faults[0]) if found.faults else int(found.pending[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_of_both_signs_are_equal_and_the_first_wins(dtype: torch.dtype) -> None:
    for row, expected in (
        ([-1.0, -0.0, 0.0], 1), ([-1.0, 0.0, -0.0], 1), ([-0.0, -0.0], 0), ([-2.0, -1.0, -1.0], 1),
    ):  # fmt: skip
        assert likeliest(torch.tensor(row, dtype=dtype)) == expected == int(np.argmax(row))
    row = torch.full((3000,), -1.0, dtype=dtype)
    row[1500], row[2900] = -0.0, 0.0  # in different blocks
    assert likeliest(row) == 1500


@pytest.mark.parametrize("dtype", DTYPES)
def test_extremes_of_the_type(dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    assert likeliest(torch.tensor([limits.min, limits.max, limits.max], dtype=dtype)) == 1
    assert likeliest(torch.tensor([-torch.inf, limits.min, -torch.inf], dtype=dtype)) == 1
    tiny = limits.smallest_normal * limits.eps  # the smallest number above 0
    assert likeliest(torch.tensor([0.0, -tiny, tiny, 0.0], dtype=dtype)) == 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", [0, 1700, 2999])
def test_rows_that_are_not_finite(dtype: torch.dtype, place: int) -> None:
    for bad, word in ((torch.nan, "nan"), (torch.inf, "inf")):
        row = torch.zeros(3000, dtype=dtype)
        row[place] = bad
        assert f"decide position 1 contain {word}:" in str(likeliest(row))
    row = torch.zeros(3000, dtype=dtype)
    row[place] = torch.nan
    assert "contain nan:" in str(likeliest(row.neg())), "a NaN may carry a sign"
    row[0] = torch.inf
    assert place == 0 or "contain nan:" in str(likeliest(row))
    assert "contain no token above -inf:" in str(likeliest(torch.full((3000,), -torch.inf, dtype=dtype)))


def test_rows_with_gaps_between_them_are_read_right() -> None:
    logits = torch.randn(8, 40, generator=torch.Generator().manual_seed(0))[::2, ::2]
    found = walk_greedily(root_forest([1, 2, 3, 4]), logits, np.zeros(4, np.int64))
    assert found.pending.tolist() == logits.argmax(-1).tolist()


def test_greedy_requests_on_a_cpu_take_this_way(monkeypatch: pytest.MonkeyPatch) -> None:
    forest, logits = forest_and_logits(1, 30, torch.float32)
    calls: list[int] = []

    def counted(*args: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return greedy(*args)  # type: ignore[arg-type]

    monkeypatch.setattr("draftwood.verify.choose.greedy", counted)
    quick = walk_forest(forest, logits, RowsChooser([Sampling()] * 4), np.arange(4))
    assert not calls
    mixed = walk_forest(forest, logits, RowsChooser([Sampling()] * 3 + [Sampling(1e-9)]), np.arange(4))
    assert calls and mixed.rows.tolist() == quick.rows.tolist() and mixed.pending.tolist() == quick.pending.tolist()
