"""The reference backend against attention written as its definition reads."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ragged_packs import HEADS, V_DIM, Case, make_case, plan_of, rows_of

from draftwood.attention import AttendOptions, attention_forward, make_backend
from draftwood.batch import SCRATCH_KV, build, kv_index
from draftwood.cache import KVPool, LayerSpec
from draftwood.core import Extent, Visibility
from draftwood.errors import UnsupportedError

PLAIN = AttendOptions(0.5)
SINKS = torch.linspace(-1.0, 2.0, HEADS, dtype=torch.float64)
OPTIONS = {
    "plain": PLAIN,
    "window3": AttendOptions(0.5, window=3),
    "window8": AttendOptions(0.5, window=8),
    "softcap": AttendOptions(0.9, softcap=0.7),
    "sinks": AttendOptions(0.5, sinks=SINKS),
    "all": AttendOptions(0.9, window=4, softcap=0.7, sinks=SINKS),
}


def tiny_pool() -> KVPool:
    return KVPool([LayerSpec(1, 1, 1)], kv_rows=100, dtype=torch.float64)


def largest_error(case: Case, options: AttendOptions, layer: int = 0) -> float:
    ours = case.ours(options, layer).double().numpy()
    return float(np.abs(ours - case.plain(options, layer)).max())


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("seed", range(6))
def test_ragged_batches_equal_the_definition(options: AttendOptions, seed: int) -> None:
    kinds = (*Visibility, Visibility.ANCESTORS, Visibility.FULL)
    case = make_case(seed, kinds)
    assert any(len(prefix) > 1 for prefix in case.batch.prefix) or seed not in (0, 1, 2)
    assert largest_error(case, options, layer=seed % 2) < 1e-12


@pytest.mark.parametrize("rows", [64, 65, 130])
def test_trees_of_several_words_equal_the_definition(rows: int) -> None:
    """Deep trees beside others, with and without a window."""
    case = make_case(rows, (Visibility.ANCESTORS, Visibility.CAUSAL), rows=rows, heads=1, kv_heads=1)
    assert case.batch.ancestors.shape == (2 * rows + 3, -(-rows // 64))
    for name in ("plain", "window8"):
        assert largest_error(case, OPTIONS[name]) < 1e-12


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 6), (6, 1), (6, 3)])
def test_groups_of_heads(heads: int, kv_heads: int) -> None:
    for options in (OPTIONS["window3"], OPTIONS["all"]):
        assert largest_error(make_case(7, heads=heads, kv_heads=kv_heads), options) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision_stays_near_the_definition(dtype: torch.dtype) -> None:
    case = make_case(3, dtype=dtype)
    for options in (OPTIONS["window3"], OPTIONS["softcap"], replace(OPTIONS["sinks"], sinks=SINKS.to(dtype))):
        assert largest_error(case, options) < 20 * torch.finfo(dtype).eps


def test_by_hand() -> None:
    """Two rows of a tree below one prefix token; scores ln 2 and ln 3 against the prefix's 0."""
    pool = tiny_pool()
    pool.open(0, 8)
    (first,) = pool.reserve(0, 1)
    pool.k(0)[first.start_kv], pool.v(0)[first.start_kv] = 0.0, 12.0
    pool.advance(0, 1)
    visible = np.array([[True, False, False], [True, True, False], [True, False, True]])
    batch = build([rows_of(pool, 0, np.array([0, 1, 1]), Visibility.ANCESTORS, visible)])
    q = torch.ones(1, 3, 1, dtype=torch.float64)
    k = torch.tensor([0.0, math.log(2), math.log(3)], dtype=torch.float64)[None, :, None]
    v = torch.tensor([24.0, 0.0, 60.0], dtype=torch.float64)[None, :, None]
    plan = plan_of(batch, pool)
    out = plan.attend(0, q, k, v, AttendOptions(1.0))
    # (12 + 24) / 2, (12 + 24 + 2 * 0) / 4, (12 + 24 + 3 * 60) / 5
    assert out[:, 0, 0].tolist() == pytest.approx([18.0, 9.0, 43.2], abs=1e-12)
    windowed = plan.attend(0, q, k, v, AttendOptions(1.0, window=2))  # position 2 no longer sees position 0
    assert windowed[:, 0, 0].tolist() == pytest.approx([18.0, 8.0, 51.0], abs=1e-12)
    sunk = plan.attend(0, q, k, v, AttendOptions(1.0, sinks=torch.tensor([math.log(5.0)], dtype=torch.float64)))
    assert sunk[:, 0, 0].tolist() == pytest.approx([36 / 7, 36 / 9, 216 / 10], abs=1e-12)
    capped = plan.attend(0, q, k, v, AttendOptions(1.0, softcap=1e-9))  # every score becomes 0
    assert capped[:, 0, 0].tolist() == pytest.approx([18.0, 12.0, 32.0], abs=1e-6)


def test_windows_count_positions_not_rows() -> None:
    """64 siblings share a position; a window of 2 keeps their parent and cuts its parent, wherever they stand."""
    pool = tiny_pool()
    pool.open(0, 80)
    at = torch.from_numpy(kv_index(pool.reserve(0, 1)))
    pool.v(0)[at] = 100.0
    pool.advance(0, 1)
    rows = 65
    visible = np.eye(rows, dtype=bool)
    visible[:, 0] = True
    batch = build([rows_of(pool, 0, np.array([0] + [1] * 64), Visibility.ANCESTORS, visible)])
    zeros, values = torch.zeros(1, rows, 1).double(), torch.arange(rows).double()[None, :, None]
    out = plan_of(batch, pool).attend(0, zeros, zeros, values, AttendOptions(1.0, window=2))
    assert out[0, 0, 0] == 50.0  # the prefix and itself
    assert torch.allclose(out[1:, 0, 0], torch.arange(1, rows).double() / 2)


def test_full_blocks_are_cut_on_both_sides() -> None:
    pool = tiny_pool()
    pool.open(0, 8)
    batch = build([rows_of(pool, 0, np.arange(4), Visibility.FULL)])
    zeros, values = torch.zeros(1, 4, 1).double(), torch.tensor([1.0, 10.0, 100.0, 1000.0]).double()[None, :, None]
    plan = plan_of(batch, pool)
    out = plan.attend(0, zeros, zeros, values, AttendOptions(1.0, window=2))[:, 0, 0]
    assert out.tolist() == pytest.approx([5.5, 37.0, 370.0, 550.0])


def test_extents_make_no_difference() -> None:
    """The same text in one extent, in five and in many, with neighbours that settle behind it between commits."""
    results = []
    for sizes in ([20], [3, 4, 2, 6, 5], [1] * 20):
        pool = KVPool([LayerSpec(2, 4, 4)], kv_rows=100, dtype=torch.float64, page_rows=1)
        pool.open(0, sizes[0])
        fill = torch.Generator().manual_seed(0)
        k, v = (torch.randn(20, 2, 4, generator=fill, dtype=torch.float64) for _ in range(2))
        start = 0
        for number, rows in enumerate(sizes):
            at = torch.from_numpy(kv_index(pool.reserve(0, rows)))
            pool.k(0)[at], pool.v(0)[at] = k[start : start + rows], v[start : start + rows]
            pool.advance(0, rows)
            pool.open(1000 + number, 1)  # a neighbour behind the last extent forces a new one
            pool.reserve(1000 + number, 3)
            pool.check_integrity()
            start += rows
        q = torch.randn(4, 3, 4, generator=fill, dtype=torch.float64)
        own = torch.randn(2, 3, 4, generator=fill, dtype=torch.float64)
        plan = plan_of(build([rows_of(pool, 0, np.arange(3), Visibility.CAUSAL)]), pool)
        results.append((len(pool.prefix(0)), plan.attend(0, q, own, own, PLAIN)))
    assert results[0][0] == 1 and results[1][0] > 1 and results[2][0] > 2
    for _, out in results[1:]:
        assert (out - results[0][1]).abs().max() < 1e-12


def test_masking_the_first_key_changes_the_output() -> None:
    case = make_case(1, (Visibility.CAUSAL, Visibility.ANCESTORS, Visibility.FULL))
    whole = case.ours(PLAIN)
    for index, (first, *others) in enumerate(case.batch.prefix):
        prefix, prefix_len = list(case.batch.prefix), case.batch.prefix_len.copy()
        shorter = (Extent(first.start_kv + 1, first.length - 1), *others)
        prefix[index] = tuple(extent for extent in shorter if extent.length)
        prefix_len[index] -= 1
        rows = case.batch.rows(index)
        cut = replace(case.batch, prefix=tuple(prefix), prefix_len=prefix_len)
        changed = (replace(case, batch=cut).ours(PLAIN) - whole).abs()
        assert changed[rows].amax(dim=(1, 2)).min() > 1e-4
        changed[rows] = 0.0
        assert changed.max() == 0.0


def test_padding_is_never_read_and_writes_to_scratch_only() -> None:
    case = make_case(5, padding=4)
    clean = case.ours(PLAIN)
    rows = case.batch.num_rows
    before = case.pool.k(0).clone()
    for part in (case.q, case.k, case.v):
        part[:, rows:] = torch.nan
    dirty = case.ours(PLAIN)
    assert (dirty[:rows] == clean[:rows]).all()
    assert (dirty[rows:] == 0.0).all()
    touched = ~((case.pool.k(0) == before).all(dim=(1, 2)))
    assert touched.nonzero()[:, 0].tolist() == [SCRATCH_KV]
    # What scratch holds now reaches nobody.
    assert (case.ours(PLAIN)[:rows] == clean[:rows]).all()


def test_requests_do_not_see_each_other() -> None:
    case = make_case(2)
    before = case.ours(PLAIN)
    rows = case.batch.rows(1)
    case.k[:, rows] += 1.0
    case.v[:, rows] += 1.0
    changed = (case.ours(PLAIN) - before).abs().amax(dim=(1, 2))
    assert changed[rows].min() > 0.0
    changed[rows] = 0.0
    assert changed.max() == 0.0


def test_layers_of_several_windows_share_a_plan() -> None:
    case = make_case(4)
    plan = case.plan()
    for window in (None, 3, 8, 3, None):
        options = AttendOptions(0.5, window=window)
        ours = plan.attend(1, case.q, case.k, case.v, options).numpy()
        assert np.abs(ours - case.plain(options, layer=1)).max() < 1e-12


def call(case: Case, **keywords: Any) -> torch.Tensor:
    module = SimpleNamespace(layer_idx=0)
    given = {"attention_mask": None, "plan": case.plan(), "scaling": 0.5} | keywords
    mask = given.pop("attention_mask")
    out, weights = attention_forward(module, case.q[None], case.k[None], case.v[None], mask, **given)  # type: ignore[arg-type]
    assert weights is None
    return out


def test_transformers_call_reaches_every_option() -> None:
    case = make_case(6)
    given = {"sliding_window": 4, "softcap": 0.7, "s_aux": SINKS}
    out = call(case, position_ids=torch.zeros(1), chunk_size=None, **given)
    assert out.shape == (1, case.q.shape[1], HEADS, V_DIM)
    assert np.abs(out[0].numpy() - case.plain(AttendOptions(0.5, 4, 0.7, SINKS))).max() < 1e-12
    for name in given:
        assert not torch.equal(call(case, **{key: value for key, value in given.items() if key != name}), out)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"chunk_size": 4}, "layer 0 asks for 'chunk_size'"),
        ({"position_bias": torch.zeros(1)}, "layer 0 asks for 'position_bias'"),
        ({"plan": None}, "needs a plan"),
        ({"attention_mask": torch.zeros(1)}, "no mask"),
        ({"dropout": 0.1}, "no dropout"),
    ],
)
def test_what_is_not_known_is_refused(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        call(make_case(6), **keywords)


def test_scaling_defaults_to_the_head_width() -> None:
    case = make_case(6)
    assert torch.allclose(call(case, scaling=None), call(case, scaling=case.q.shape[-1] ** -0.5))


def test_unknown_backend() -> None:
    assert make_backend("sdpa").name == "sdpa"
    with pytest.raises(UnsupportedError, match="attention 'flash': expected one of sdpa"):
        make_backend("flash")
