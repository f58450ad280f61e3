"""Batches padded to row tiers: padding changes no text and no row that belongs to somebody."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoding import RAGGED, SAMPLED, Wanted, greedy_wanted, knowing, random_drafter, run, sampled_wanted
from families import family

from draftwood.batch import SCRATCH_KV, Batch
from draftwood.core import Sampling
from draftwood.engine import EngineConfig
from draftwood.errors import UsageError

TIERS = (8, 16, 32)
CONFIG = EngineConfig(prefill_chunk=8, row_tiers=TIERS)
CASES = ["ddtree7", "ar", "chain"]


@dataclass
class Kept:
    """A target that keeps its batches."""

    inner: Any
    batches: list[Batch] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def forward(self, batch: Batch, *args: Any) -> torch.Tensor:
        self.batches.append(batch)
        logits: torch.Tensor = self.inner.forward(batch, *args)
        return logits


def decoded(name: str, wanted: list[Wanted], drafter: Any, **options: Any) -> list[Batch]:
    """Texts are checked; the batches that made them."""
    made = family(name, "float64")
    target = Kept(made.target)
    spied = type(made)(made.name, target, made.reference, made.exact)  # type: ignore[arg-type]
    for one in run(spied, drafter, CASES, wanted, config=CONFIG, **options):
        assert one.request.token_ids == one.wanted.text
    return target.batches


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3_moe"])
def test_texts_are_the_same_and_every_batch_is_a_tier(name: str) -> None:
    batches = decoded(name, greedy_wanted(name, "float64", RAGGED[:3]), knowing())
    assert {len(batch.token_ids) for batch in batches} == set(TIERS)
    for batch in batches:
        padded = len(batch.token_ids)
        assert padded == min(tier for tier in TIERS if tier >= batch.num_rows)
        assert len(batch.pos) == len(batch.kv_rows) == len(batch.ancestors) == padded
        assert (batch.kv_rows[batch.num_rows :] == SCRATCH_KV).all()
        own = batch.kv_rows[: batch.num_rows]
        assert len(np.unique(own)) == len(own) and (own >= 16).all()  # page 0 is nobody's
        assert max([-1, *batch.logit_rows, *batch.tap_rows]) < batch.num_rows


def test_with_a_real_drafter_and_drawn_texts(tmp_path: Path) -> None:
    made, sampling = family("llama", "float64"), Sampling(1.0, seed=11)
    drafter = random_drafter(tmp_path, made)
    batches = decoded("llama", sampled_wanted("llama", SAMPLED[:3], sampling), drafter, sampling=sampling)
    assert {len(batch.token_ids) for batch in batches} <= set(TIERS)


def test_more_rows_than_the_last_tier_are_not_padded() -> None:
    made = family("llama", "float64")
    target = Kept(made.target)
    spied = type(made)(made.name, target, made.reference, made.exact)  # type: ignore[arg-type]
    wanted = greedy_wanted("llama", "float64", RAGGED[:2])
    for one in run(spied, knowing(), ["ddtree64"], wanted, config=EngineConfig(row_tiers=(4, 60))):
        assert one.request.token_ids == one.wanted.text
    sizes = {len(batch.token_ids) for batch in target.batches}
    assert 60 in sizes and any(size > 60 for size in sizes)
    assert all(len(batch.token_ids) in (4, 60) or batch.num_rows > 60 for batch in target.batches)


@pytest.mark.parametrize("tiers", [(8, 8), (16, 8), (0, 8)])
def test_tiers_that_are_none(tiers: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="expected increasing numbers of rows"):
        EngineConfig(row_tiers=tiers)
