"""Top-K with log-probabilities over the whole vocabulary, ties to the lower id."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from draftwood.draft.scores import top_scores


def plain(row: np.ndarray, candidates: int) -> tuple[list[int], np.ndarray]:
    """The definition: sort by (logit descending, id), then subtract the logarithm of the sum of all exponentials."""
    order = sorted(range(len(row)), key=lambda v: (-row[v], v))[:candidates]
    wide = row.astype(np.float64)
    top = wide.max()
    return order, wide[order] - top - np.log(np.exp(wide - top).sum())


@pytest.mark.parametrize("vocab", [1, 7, 64, 65, 1000, 4099])
@pytest.mark.parametrize("candidates", [1, 3, 16, 70])
@pytest.mark.parametrize("levels", [2, 5, 1000])
def test_equals_the_definition_with_ties(vocab: int, candidates: int, levels: int) -> None:
    rng = np.random.default_rng(vocab * 1000 + candidates + levels)
    logits = (rng.integers(-levels, levels + 1, (5, vocab)) / 4).astype(np.float32)
    best = top_scores(torch.from_numpy(logits), candidates)
    assert best.ids.shape == best.logp.shape == (5, min(candidates, vocab))
    for row in range(5):
        ids, logp = plain(logits[row], candidates)
        assert best.ids[row].tolist() == ids
        np.testing.assert_allclose(best.logp[row].numpy(), logp, atol=2e-5, rtol=1e-6)
    assert (best.logp <= 0).all() and (best.logp.diff(dim=1) <= 0).all()


def test_zeros_of_either_sign_are_equal() -> None:
    logits = torch.full((1, 300), -5.0)
    logits[0, [7, 70, 150, 290]] = torch.tensor([-0.0, 0.0, -0.0, 0.0])
    assert top_scores(logits, 2).ids.tolist() == [[7, 70]]
    assert top_scores(logits, 200).ids[0, :4].tolist() == [7, 70, 150, 290]


def test_banned_tokens_and_padding_of_the_last_group_stay_behind() -> None:
    logits = torch.full((1, 330), -torch.inf)
    logits[0, 329] = 1.0
    best = top_scores(logits, 2)
    assert best.ids.tolist() == [[329, 0]] and best.logp.tolist() == [[0.0, -torch.inf]]


def test_a_sure_candidate_is_never_above_zero() -> None:
    logits = torch.full((40, 500), -20.0, dtype=torch.float32)
    logits[:, 3] = torch.linspace(0, 90, 40)
    best = top_scores(logits, 4)
    assert (best.logp <= 0).all() and (best.ids[:, 0] == 3).all()


def test_bfloat16_logits_are_normalised_in_float32() -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 2000).bfloat16()
    best = top_scores(logits, 8)
    assert best.logp.dtype == torch.float32
    expected = torch.log_softmax(logits.double(), dim=1).gather(1, best.ids)
    torch.testing.assert_close(best.logp.double(), expected, atol=1e-5, rtol=0)


def test_nan_reaches_every_candidate() -> None:
    logits = torch.zeros(2, 1000)
    logits[1, 900] = torch.nan
    best = top_scores(logits, 3)
    assert torch.isfinite(best.logp[0]).all() and torch.isnan(best.logp[1]).all()
