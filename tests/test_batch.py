"""A round's arrays against what each request brought, one number at a time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from ragged_packs import words_of
from trees import random_forest

from draftwood.batch import SCRATCH_KV, Batch, RequestRows, build, kv_index, upload
from draftwood.core import Extent, Visibility
from draftwood.tree.layout import ancestor_words, positions
from draftwood.tree.oracle import visibility_by_walking

CPU = torch.device("cpu")
ARRAYS = ("token_ids", "pos", "kv_rows", "ancestors", "logit_rows", "tap_rows")


def part(
    request: int,
    rows: int,
    start_kv: int,
    kind: Visibility = Visibility.CAUSAL,
    ancestors: np.ndarray | None = None,
    logits_from: int | None = None,
    taps: bool = False,
    prefix_len: int = 3,
) -> RequestRows:
    """Rows whose every number tells whose it is; staged in two extents where there are two rows."""
    cut = rows // 2
    extents = (Extent(start_kv, rows - cut), Extent(start_kv + 500, cut)) if cut else (Extent(start_kv, rows),)
    return RequestRows(
        request,
        1000 * request + np.arange(rows),
        100 * request + np.arange(rows),
        prefix_len,
        (Extent(start_kv + 900, prefix_len),),
        extents,
        kind,
        ancestors,
        logits_from,
        taps,
    )


def mixed() -> list[RequestRows]:
    """A chunk of a prompt, its end, a root alone, two trees of two words and of one, a drafter's block."""
    rng = np.random.default_rng(0)
    wide, small = (ancestor_words(random_forest(rng, [nodes])) for nodes in (69, 4))
    return [
        part(4, 6, 20, taps=True),
        part(2, 3, 40, logits_from=2),
        part(9, 1, 60, logits_from=0, taps=True, prefix_len=0),
        part(5, 70, 80, Visibility.ANCESTORS, wide, logits_from=0, taps=True),
        part(1, 5, 200, Visibility.ANCESTORS, small, logits_from=0),
        part(7, 4, 220, Visibility.FULL),
    ]


def test_every_array_by_hand() -> None:
    parts = [
        part(1, 3, 20, logits_from=2, taps=True),
        part(2, 2, 40, Visibility.ANCESTORS, np.array([[1], [3]]), logits_from=0),
    ]
    batch = build(parts)
    assert batch.requests == (1, 2) and batch.offsets.tolist() == [0, 3, 5] and batch.num_rows == 5
    assert batch.token_ids.tolist() == [1000, 1001, 1002, 2000, 2001]
    assert batch.pos.tolist() == [100, 101, 102, 200, 201]
    assert batch.kv_rows.tolist() == [20, 21, 520, 40, 540]
    assert batch.ancestors.tolist() == [[0], [0], [0], [1], [3]]
    assert batch.logit_rows.tolist() == [2, 3, 4] and batch.tap_rows.tolist() == [0, 1, 2]
    assert batch.prefix_len.tolist() == [3, 3] and batch.prefix == ((Extent(920, 3),), (Extent(940, 3),))
    assert batch.visibility == (Visibility.CAUSAL, Visibility.ANCESTORS)
    assert (batch.rows(0), batch.rows(1)) == (slice(0, 3), slice(3, 5))


@pytest.mark.parametrize("tiers", [(), (100,), (96, 128)])
def test_rows_stand_request_after_request(tiers: tuple[int, ...]) -> None:
    parts = mixed()
    batch = build(parts, tiers)
    padded = {(): 89, (100,): 100, (96, 128): 96}[tiers]
    assert batch.num_rows == 89 and batch.ancestors.shape == (padded, 2)
    token_ids, pos, kv_rows, logit_rows, tap_rows = ([] for _ in range(5))
    for at, one in enumerate(parts):
        assert batch.rows(at) == slice(len(token_ids), len(token_ids) + len(one.token_ids))
        for row in range(len(one.token_ids)):
            if one.logits_from is not None and row >= one.logits_from:
                logit_rows.append(len(token_ids))
            if one.taps:
                tap_rows.append(len(token_ids))
            words = [] if one.ancestors is None else one.ancestors[row].tolist()
            assert batch.ancestors[len(token_ids)].tolist() == words + [0] * (2 - len(words))
            token_ids.append(int(one.token_ids[row]))
            pos.append(int(one.pos[row]))
        kv_rows += [extent.start_kv + row for extent in one.staged for row in range(extent.length)]
    filler = [0] * (padded - 89)
    assert batch.token_ids.tolist() == token_ids + filler and batch.pos.tolist() == pos + filler
    assert batch.kv_rows.tolist() == kv_rows + [SCRATCH_KV] * len(filler)
    assert (batch.logit_rows.tolist(), batch.tap_rows.tolist()) == (logit_rows, tap_rows)


@pytest.mark.parametrize(
    ("tiers", "padded"),
    [
        ((), 5),
        ((5,), 5),
        ((4,), 5),
        ((6,), 6),
        ((1, 2, 4, 8, 16), 8),
        ((1, 5, 8), 5),
        ((1, 2, 3, 4), 5),
        ((64, 128), 64),
    ],
)
def test_padding_reaches_the_smallest_tier_that_holds_the_rows(tiers: tuple[int, ...], padded: int) -> None:
    """And none larger is no padding."""
    batch = build([part(1, 3, 20), part(2, 2, 40)], tiers)
    assert len(batch.token_ids) == len(batch.pos) == len(batch.kv_rows) == len(batch.ancestors) == padded
    assert batch.num_rows == 5 and batch.ancestors.shape == (padded, 0)


def test_one_buffer_holds_all_arrays_side_by_side() -> None:
    for tiers in ((), (120,)):
        batch = build(mixed(), tiers)
        start = batch.buffer.__array_interface__["data"][0]
        places = []
        for name in ARRAYS:
            array = getattr(batch, name)
            assert array.dtype == np.int64 and np.shares_memory(array, batch.buffer)
            place = (array.__array_interface__["data"][0] - start) // 8
            places.append((place, place + array.size))
        assert places[0][0] == 0 and places[-1][1] == batch.buffer.size and batch.buffer.ndim == 1
        assert all(before[1] == after[0] for before, after in pairwise(places))


def test_an_upload_to_the_cpu_shares_memory() -> None:
    batch = build(mixed(), (100,))
    tensors = upload(batch, CPU)
    for name in ARRAYS:
        array, tensor = getattr(batch, name), getattr(tensors, name)
        assert tensor.dtype == torch.int64 and tuple(tensor.shape) == array.shape
        assert tensor.data_ptr() == array.__array_interface__["data"][0]
        assert tensor.tolist() == array.tolist()
    batch.token_ids[3] = -77
    assert tensors.token_ids[3] == -77


def test_an_upload_is_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = build(mixed())
    moved: list[tuple[int, ...]] = []
    original = torch.Tensor.to

    def counted(self: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        moved.append(tuple(self.shape))
        return original(self, *args, **kwargs)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(torch.Tensor, "to", counted)
    tensors = upload(batch, torch.device("meta"))
    assert moved == [batch.buffer.shape]
    assert {tensor.device.type for tensor in tensors} == {"meta"}


@pytest.mark.parametrize("sizes", [[1], [2], [63], [64], [65], [128], [129], [300], [130, 2, 65, 1, 64], [3, 200, 7]])
def test_ancestors_equal_walks_to_the_root(sizes: list[int]) -> None:
    """Trees of one to five words beside each other, each with words enough for the largest or just for itself."""
    rng = np.random.default_rng(sum(sizes))
    for reach in (1, 4, None):
        forest = random_forest(rng, [size - 1 for size in sizes], vocabulary=400, reach=reach)
        words, pos = ancestor_words(forest), positions(forest, 10 * np.arange(len(sizes)))
        for narrow in (False, True):
            parts = []
            for index in range(len(sizes)):
                rows = slice(int(forest.offsets[index]), int(forest.offsets[index + 1]))
                own = words[rows, : -(-sizes[index] // 64)] if narrow else words[rows]
                parts.append(part(index, sizes[index], 2000 * index + 1, Visibility.ANCESTORS, own)._replace(
                    pos=pos[rows]))  # fmt: skip
            batch = build(parts, (256,))
            for index, size in enumerate(sizes):
                expected = visibility_by_walking(forest[index].parent)
                check_visible(batch, index, None if size == 1 else expected)
                assert words_of(expected).tolist() == parts[index].ancestors[:, : -(-size // 64)].tolist()


def check_visible(batch: Batch, index: int, expected: np.ndarray | None) -> None:
    visible = batch.own_visible(index)
    assert (visible is None) == (expected is None)
    if visible is not None and expected is not None:
        assert visible.dtype == bool and visible.shape == expected.shape
        np.testing.assert_array_equal(visible, expected)


def test_chunks_and_blocks_see_what_they_should() -> None:
    batch = build([part(1, 5, 20), part(2, 4, 40, Visibility.FULL), part(3, 1, 60), *mixed()[3:4]])
    check_visible(batch, 0, np.array([[key <= row for key in range(5)] for row in range(5)]))
    check_visible(batch, 1, None)
    check_visible(batch, 2, None)
    assert batch.own_visible(3) is not None


def test_wide_bits_are_signed_words() -> None:
    """Bit 63 is the sign of an int64: it must neither be lost nor spread."""
    parents = np.concatenate([[-1], np.zeros(130, np.int64)])
    parents[[64, 128]] = 63, 127
    visible = visibility_by_walking(parents)
    words = words_of(visible)
    assert words[63].tolist() == [1 - 2**63, 0, 0] and words[64].tolist() == [1 - 2**63, 1, 0]
    assert words[128].tolist() == [1, -(2**63), 1]
    check_visible(build([part(1, 131, 1, Visibility.ANCESTORS, words)]), 0, visible)


def test_rows_of_extents() -> None:
    assert kv_index([]).tolist() == [] and kv_index([]).dtype == np.int64
    assert kv_index([Extent(5, 3)]).tolist() == [5, 6, 7]
    assert kv_index((Extent(9, 1), Extent(2, 2), Extent(4, 1))).tolist() == [9, 2, 3, 4]
