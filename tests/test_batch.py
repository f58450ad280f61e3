"""A batch: one buffer, rows of requests side by side, ancestors as words."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from draftwood.batch import SCRATCH_KV, RequestRows, build, kv_index, upload
from draftwood.core import Extent, Visibility


def tree_rows(request: int, parents: list[int]) -> tuple[RequestRows, np.ndarray]:
    """Rows of a tree, its words set bit by bit, and the (n, n) matrix found by walking parents."""
    rows = len(parents)
    visible = np.zeros((rows, rows), bool)
    words = np.zeros((rows, -(-rows // 64)), np.int64)
    for row in range(rows):
        node = row
        while node >= 0:
            visible[row, node] = True
            words[row, node // 64] |= np.int64(np.uint64(1) << np.uint64(node % 64))
            node = parents[node]
    ids = np.arange(rows) + 100 * request
    staged = (Extent(1000 * (request + 1), rows),)
    return RequestRows(request, ids, ids, 3, (Extent(7, 3),), staged, Visibility.ANCESTORS, words, 0, True), visible


def chunk_rows(request: int, rows: int, logits_from: int | None) -> RequestRows:
    ids = np.arange(rows)
    staged = (Extent(500, 2), Extent(600, rows - 2))
    return RequestRows(request, ids, ids, 0, (), staged, Visibility.CAUSAL, None, logits_from)


def random_parents(rng: np.random.Generator, rows: int) -> list[int]:
    return [-1, *(int(rng.integers(0, row)) for row in range(1, rows))]


def test_rows_of_several_requests() -> None:
    """A chunk of 5 whose last row is judged, and trees of 3, 70 and 200 rows."""
    rng = np.random.default_rng(0)
    trees = [tree_rows(request, random_parents(rng, rows)) for request, rows in ((4, 3), (5, 70), (6, 200))]
    parts = [chunk_rows(3, 5, 4), *(rows for rows, _ in trees)]
    batch = build(parts)
    assert batch.requests == (3, 4, 5, 6) and batch.offsets.tolist() == [0, 5, 8, 78, 278]
    assert batch.num_rows == len(batch.token_ids) == 278 and batch.ancestors.shape == (278, 4)
    assert batch.token_ids.tolist() == [token for part in parts for token in part.token_ids.tolist()]
    assert batch.kv_rows[:5].tolist() == [500, 501, 600, 601, 602]
    assert batch.logit_rows.tolist() == list(range(4, 278)) and batch.tap_rows.tolist() == list(range(5, 278))
    assert batch.prefix_len.tolist() == [0, 3, 3, 3]
    assert batch.own_visible(0).tolist() == np.tri(5, dtype=bool).tolist()
    for index, (_, visible) in enumerate(trees, start=1):
        np.testing.assert_array_equal(batch.own_visible(index), visible)
    whole = np.concatenate(
        [batch.token_ids, batch.pos, batch.kv_rows, batch.ancestors.ravel(), batch.logit_rows, batch.tap_rows]
    )
    np.testing.assert_array_equal(batch.buffer, whole)


def test_what_needs_no_words() -> None:
    one, block = chunk_rows(0, 3, None), chunk_rows(1, 4, 0)._replace(visibility=Visibility.FULL)
    batch = build(
        [
            one,
            block,
            chunk_rows(2, 3, 0)._replace(token_ids=np.array([9]), pos=np.array([0]))._replace(staged=(Extent(5, 1),)),
        ]
    )
    assert batch.ancestors.shape == (8, 0)
    assert batch.own_visible(1) is None and batch.own_visible(2) is None
    assert batch.logit_rows.tolist() == [3, 4, 5, 6, 7] and batch.tap_rows.tolist() == []


@pytest.mark.parametrize(("tiers", "padded"), [((), 8), ((4, 8, 16), 8), ((4, 12, 16), 12), ((2, 4), 8)])
def test_padding_goes_to_the_next_tier(tiers: tuple[int, ...], padded: int) -> None:
    tree, visible = tree_rows(0, [-1, 0, 0, 1, 1, 2, 3, 0])
    batch = build([tree], tiers)
    assert len(batch.token_ids) == len(batch.ancestors) == padded and batch.num_rows == 8
    assert (batch.kv_rows[8:] == SCRATCH_KV).all() and not batch.token_ids[8:].any() and not batch.pos[8:].any()
    assert batch.logit_rows.tolist() == list(range(8))
    np.testing.assert_array_equal(batch.own_visible(0), visible)


def test_upload_is_one_piece() -> None:
    batch = build([tree_rows(0, [-1, 0, 1])[0], chunk_rows(1, 4, 3)])
    tensors = upload(batch, torch.device("cpu"))
    for name in ("token_ids", "pos", "kv_rows", "ancestors", "logit_rows", "tap_rows"):
        tensor = getattr(tensors, name)
        np.testing.assert_array_equal(tensor.numpy(), getattr(batch, name))
        assert tensor.untyped_storage().data_ptr() == batch.buffer.ctypes.data


def test_rows_of_extents() -> None:
    assert kv_index([Extent(3, 2)]).tolist() == [3, 4]
    assert kv_index([Extent(3, 2), Extent(9, 1), Extent(0, 3)]).tolist() == [3, 4, 9, 0, 1, 2]
    assert kv_index([]).tolist() == []
