"""The Gumbel chooser: its law, what it depends on, and that the kernel and the tensors draw alike."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from draftwood.core import Sampling
from draftwood.errors import UsageError
from draftwood.verify import CounterDraw, Gumbel, chooser, greedy
from draftwood.verify.sampling import _on_device, gumbel
from draftwood.verify.uniform import position_key, uniform, uniforms

FALSE_ALARM = 1e-4
"""Chance that one chi-square test fails on a right sampler; seeds are fixed, so a pass stays a pass."""
CPU = torch.device("cpu")


def chi_square_passes(counts: np.ndarray, prob: np.ndarray) -> bool:
    """Whether counts fit the law at FALSE_ALARM; tokens of probability zero must never occur."""
    assert counts[prob == 0].sum() == 0
    alive = prob > 0
    expected = counts.sum() * prob[alive]
    statistic = float(((counts[alive] - expected) ** 2 / expected).sum())
    return bool(statistic < chi2.isf(FALSE_ALARM, alive.sum() - 1))


def draws(choose: Gumbel, logits: torch.Tensor, pos: np.ndarray) -> np.ndarray:
    return choose(logits.expand(len(pos), -1), pos).numpy()


@pytest.mark.parametrize("vocabulary", [2, 7, 64])
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_law_over_positions(vocabulary: int, temperature: float) -> None:
    rng = np.random.default_rng(vocabulary)
    logits = torch.from_numpy(rng.normal(0, 1.2, vocabulary))
    logits[0] = -torch.inf if vocabulary > 2 else logits[0]
    prob = torch.softmax(logits / temperature, -1).numpy()
    tokens = draws(Gumbel(temperature, seed=vocabulary), logits, np.arange(20_000))
    assert chi_square_passes(np.bincount(tokens, minlength=vocabulary), prob)
    assert not chi_square_passes(np.bincount(tokens, minlength=vocabulary), np.roll(prob, -1) if prob[0] else
                                 np.concatenate([[0.0], np.roll(prob[1:], 1)]))  # fmt: skip


def test_law_over_seeds_and_completions_of_one_token() -> None:
    """Many seeds of one token at T = 1: several tokens, in the right proportions."""
    logits = torch.log(torch.tensor([0.5, 0.25, 0.2, 0.05], dtype=torch.float64))
    prob = logits.exp().numpy()
    by_seed = [int(Gumbel(1.0, seed)(logits[None], np.array([11]))) for seed in range(4000)]
    by_completion = [int(Gumbel(1.0, 5, completion)(logits[None], np.array([11]))) for completion in range(4000)]
    assert len(set(by_seed)) == 4
    assert chi_square_passes(np.bincount(by_seed, minlength=4), prob)
    assert chi_square_passes(np.bincount(by_completion, minlength=4), prob)


def test_neighbouring_positions_are_independent() -> None:
    """Pairs of tokens at adjacent positions, and under adjacent seeds, follow the product law."""
    logits = torch.log(torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64))
    prob = np.outer(logits.exp(), logits.exp()).ravel()
    tokens = draws(Gumbel(1.0, 3), logits, np.arange(20_000))
    assert chi_square_passes(np.bincount(tokens[0::2] * 4 + tokens[1::2], minlength=16), prob)
    other = draws(Gumbel(1.0, 4), logits, np.arange(20_000))
    assert chi_square_passes(np.bincount(tokens * 4 + other, minlength=16), prob)


@pytest.mark.parametrize("vocabulary", [1, 2, 50, 1000])
@pytest.mark.parametrize("spread", [0.0, 1.0, 15.0])
def test_kernel_draws_what_the_tensors_draw(vocabulary: int, spread: float) -> None:
    """The pruned CPU kernel against the unpruned tensor path, which also serves accelerators."""
    rng = np.random.default_rng(17)
    for seed in range(25):
        logits = torch.from_numpy(rng.normal(0, spread, (4, vocabulary)))
        if vocabulary > 2:
            logits[rng.random((4, vocabulary)) < 0.3] = -torch.inf
            logits[:, 1] = 0.0
        pos = np.array([9, 10, 10, 4000])
        keys = [position_key(seed, 2, int(at)) for at in pos]
        by_kernel = Gumbel(0.7, seed, completion=2)(logits, pos).tolist()
        assert by_kernel == _on_device(logits, np.full(4, 0.7), keys).tolist()
        mixed = np.array([0.7, 0.2, 1.9, 0.7])  # rows of several requests
        assert gumbel(logits, mixed, keys).tolist() == _on_device(logits, mixed, keys).tolist()
        assert [gumbel(logits, mixed, keys)[row] for row in (0, 3)] == [by_kernel[row] for row in (0, 3)]


def test_tensors_in_runs_of_rows_draw_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide trees are scored in pieces; siblings share their noise across them."""
    rng = np.random.default_rng(23)
    logits, temperature = torch.from_numpy(rng.normal(0, 2, (9, 20))), rng.uniform(0.3, 2.0, 9)
    keys = [position_key(1, 0, pos) for pos in (4, 5, 5, 5, 6, 6, 4, 7, 5)]
    whole = _on_device(logits, temperature, keys).tolist()
    monkeypatch.setattr("draftwood.verify.sampling.MAX_ELEMENTS", 45)  # two rows at a time
    assert _on_device(logits, temperature, keys).tolist() == whole


def test_kernel_equals_the_formula_written_out() -> None:
    logits = torch.from_numpy(np.random.default_rng(2).normal(0, 2, (1, 30)))
    for pos in range(50):
        key = position_key(21, 1, pos)
        scores = [float(logits[0, v]) / 0.9 - np.log(-np.log(uniform(key, v))) for v in range(30)]
        assert int(Gumbel(0.9, 21, 1)(logits, np.array([pos]))) == int(np.argmax(scores))


def test_huge_and_tiny_logits() -> None:
    logits = torch.tensor([[-1e300, 5.0, -1e308, -torch.inf]], dtype=torch.float64)
    assert Gumbel(1.0, 0)(logits, np.array([0])).tolist() == [1]
    flat = torch.full((1, 4), -1e30)
    assert len({int(Gumbel(1.0, 0)(flat, np.array([pos]))) for pos in range(50)}) == 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_logits_draw_like_their_wide_copies(dtype: torch.dtype) -> None:
    logits = torch.from_numpy(np.random.default_rng(4).normal(0, 2, (20, 40))).to(dtype)
    pos = np.arange(20)
    assert Gumbel(1.0, 6)(logits, pos).tolist() == Gumbel(1.0, 6)(logits.double(), pos).tolist()
    assert greedy(logits, pos).tolist() == greedy(logits.double(), pos).tolist()


def test_uniforms_of_tensors_and_of_integers_agree() -> None:
    keys = [0, 1, 2**63, 2**64 - 1, position_key(2**63 - 1, 7, 123456)]
    table = uniforms(keys, 200, CPU)
    assert table.dtype == torch.float64 and bool(((table > 0) & (table < 1)).all())
    for row, key in enumerate(keys):
        assert table[row].tolist() == [uniform(key, counter) for counter in range(200)]


def test_uniforms_are_uniform() -> None:
    table = uniforms([position_key(seed, 0, pos) for seed in range(8) for pos in range(50)], 250, CPU).numpy()
    cells = np.bincount((table.ravel() * 100).astype(int), minlength=100)
    assert chi_square_passes(cells, np.full(100, 0.01))
    low_bits = np.bincount((table.ravel() * 2**52).astype(np.int64) % 64, minlength=64)
    assert chi_square_passes(low_bits, np.full(64, 1 / 64))


def test_every_part_of_the_key_matters() -> None:
    keys = {
        position_key(seed, completion, pos, purpose)
        for seed in (0, 1, 2, 2**62)
        for completion in (0, 1, 2)
        for pos in (0, 1, 2)
        for purpose in (0, 1)
    }
    assert len(keys) == 4 * 3 * 3 * 2


def test_different_seeds_completions_and_positions_differ() -> None:
    logits = torch.zeros(1, 50, dtype=torch.float64)
    pos = np.arange(40)
    base = draws(Gumbel(1.0, 1), logits, pos)
    for other in (Gumbel(1.0, 2), Gumbel(1.0, 1, 1)):
        assert (draws(other, logits, pos) == base).mean() < 0.3
    assert (draws(Gumbel(1.0, 1), logits, pos + 1) == base).mean() < 0.3
    assert (draws(Gumbel(1.0, 1), logits, pos) == base).all()


def test_factory() -> None:
    assert chooser(Sampling()) is greedy
    assert chooser(Sampling(temperature=0.5, seed=3, completion=2)) == Gumbel(0.5, 3, 2)
    with pytest.raises(UsageError, match=r"temperature 0\.0: expected a finite number > 0"):
        Gumbel(0.0, 1)


def test_greedy_ties_go_to_the_lower_id() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0], [0.0, -torch.inf, 0.0, 0.0]])
    assert greedy(logits, np.array([0, 1])).tolist() == [1, 0]


def test_counter_draws_follow_their_weights() -> None:
    weights = np.array([0.0, 0.5, 0.0, 0.3, 0.2, 0.0])
    picks = [CounterDraw(4)(weights, pos, 2) for pos in range(8000)]
    assert chi_square_passes(np.bincount(picks, minlength=6), weights)
    again = [CounterDraw(4)(weights, pos, 2) for pos in range(100)]
    assert picks[:100] == again
    assert picks[:100] != [CounterDraw(5)(weights, pos, 2) for pos in range(100)]
    assert picks[:100] != [CounterDraw(4)(weights, pos, 3) for pos in range(100)]
