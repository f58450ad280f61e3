"""Losslessness: every family, dtype and policy, alone and in ragged batches, against transformers' own generation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from decoding import (
    POLICY_CASES,
    RAGGED,
    SAMPLED,
    SOLO,
    Outcome,
    Wanted,
    greedy_wanted,
    knowing,
    random_drafter,
    run,
    sampled_wanted,
)
from families import DTYPES, FAMILIES, HALF, family
from stub_drafter import share_above_rank_0

from draftwood.core import Sampling
from draftwood.draft.suffix import SuffixDrafter
from draftwood.draft.union import UnionDrafter

pytestmark = pytest.mark.portable

ABOVE = {"ddtree1": 1.5, "chain": 2.5, "ddtree7": 2.5, "ddtree64": 2.5}

each_model = pytest.mark.parametrize(("name", "dtype"), [(name, dtype) for name in FAMILIES for dtype in DTYPES])


def assert_lossless(done: list[Outcome]) -> None:
    for one in done:
        assert one.request.token_ids == one.wanted.text
        assert one.request.finish_reason == "length"
        assert sum(record.committed for record in one.request.rounds) == len(one.wanted.text) - 1


def mean_committed(done: list[Outcome]) -> float:
    return float(np.mean([record.committed for one in done for record in one.request.rounds]))


@each_model
@pytest.mark.parametrize("shape", [SOLO, RAGGED], ids=["solo", "ragged"])
def test_equal_to_transformers_with_a_drafter_that_is_often_right(name: str, dtype: str, shape: tuple) -> None:
    made, wanted = family(name, dtype), greedy_wanted(name, dtype, shape)
    for case in POLICY_CASES:
        done = run(made, knowing(), [case], wanted)
        assert_lossless(done)
        if case == "ar":
            assert all(record.committed == 1 for one in done for record in one.request.rounds)
        else:
            assert mean_committed(done) > ABOVE[case], case
        if case == "ddtree64":
            outcomes = [outcome for one in done for outcome in one.outcomes]
            assert share_above_rank_0(outcomes) >= 0.1
            assert max(record.rows for one in done for record in one.request.rounds) == 65


@each_model
def test_equal_to_transformers_with_random_drafter_weights(name: str, dtype: str, tmp_path: Path) -> None:
    made, wanted = family(name, dtype), greedy_wanted(name, dtype, RAGGED)
    drafter = random_drafter(tmp_path, made)
    accepted = 0
    for cases in (["ddtree64", "chain", "ddtree7", "ddtree1"], ["ddtree7", "ddtree64", "ar", "chain"]):
        done = run(made, drafter, cases, wanted)
        assert_lossless(done)
        assert drafter.pool.requests == ()
        accepted += sum(record.accepted for one in done for record in one.request.rounds)
    assert accepted > 0  # luck alone gives some, so accepted rows were really committed


@pytest.mark.parametrize("union", [False, True], ids=["suffix", "union"])
@pytest.mark.parametrize("name", FAMILIES)
def test_equal_to_transformers_with_a_drafter_of_repeats(name: str, union: bool, tmp_path: Path) -> None:
    """Random texts over 64 tokens repeat pairs of tokens, so that it proposes; alone, and beside a random drafter."""
    made, wanted = family(name, "float64"), greedy_wanted(name, "float64", RAGGED)
    suffix = SuffixDrafter()
    drafter = UnionDrafter([random_drafter(tmp_path, made), suffix]) if union else suffix
    drafted = 0
    for cases in (["ddtree64", "chain", "ddtree7", "ddtree1"], ["ddtree7", "ddtree64", "ar", "chain"]):
        done = run(made, drafter, cases, wanted)
        assert_lossless(done)
        drafted += sum(record.rows - 1 for one in done for record in one.request.rounds)
    assert drafted > 100


@pytest.mark.parametrize("name", FAMILIES)
def test_seeded_text_does_not_depend_on_policy_or_neighbours(name: str) -> None:
    made, sampling = family(name, "float64"), Sampling(1.0, seed=11)
    wanted = sampled_wanted(name, SAMPLED, sampling)
    for case in POLICY_CASES:
        done = run(made, knowing(), [case], wanted, sampling=sampling)
        assert_lossless(done)
        assert case == "ar" or mean_committed(done) > ABOVE[case]
    mixed = run(made, knowing(), list(POLICY_CASES), wanted, sampling=sampling)
    assert_lossless(mixed)
    for one in wanted[::2]:
        alone = run(made, knowing(), ["ddtree64"], [one], sampling=sampling)
        assert_lossless(alone)


@pytest.mark.parametrize("name", FAMILIES)
def test_policies_mix_in_one_batch(name: str) -> None:
    made, wanted = family(name, "float32"), greedy_wanted(name, "float32", RAGGED)
    done = run(made, knowing(), ["ddtree64", "ar", "chain", "ddtree7", "ddtree1"], wanted)
    assert_lossless(done)
    assert done[1].mean_committed == 1.0 and done[0].mean_committed > 2.0


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", ["qwen3", "gemma2", "gpt_oss"])
def test_half_precision_differs_near_ties_only(name: str, dtype: str, tmp_path: Path) -> None:
    made = family(name, dtype)
    drafter = random_drafter(tmp_path, made)
    prompts = [tuple(range(3 + start, 15 + 2 * start)) for start in range(5)]
    texts = {}
    for case in ("ar", "ddtree64"):
        done = run(made, drafter, [case], [Wanted(prompt, [0] * 24, 0, 0) for prompt in prompts])
        texts[case] = [one.request.token_ids for one in done]
    for prompt, plain, tree in zip(prompts, texts["ar"], texts["ddtree64"], strict=True):
        assert len(tree) == 24
        if plain == tree:
            continue
        at = next(index for index in range(24) if plain[index] != tree[index])
        top = made.target.native_logits([*prompt, *plain[:at]])[-1].double().topk(2).values
        assert top[0] - top[1] < 8 * torch.finfo(HALF[dtype]).eps * max(1.0, abs(float(top[0])))
    assert sum(plain == tree for plain, tree in zip(texts["ar"], texts["ddtree64"], strict=True)) >= 2
