from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from draftwood.bench import stats
from draftwood.bench.stats import Bootstrap
from draftwood.errors import UsageError


def paired(seed: int = 0, prompts: int = 30) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    hard = rng.gamma(3.0, size=prompts)
    tokens = rng.integers(40, 200, size=prompts).astype(float)
    return [
        tokens,
        tokens * hard * rng.normal(1.0, 0.05, prompts),
        tokens,
        tokens * hard * rng.normal(1.3, 0.05, prompts),
    ]


def scipy_interval(statistic: object, columns: list[np.ndarray], seed: int, level: float = 0.95) -> tuple[float, float]:
    found = scipy.stats.bootstrap(
        tuple(columns), statistic, paired=True, vectorized=True, n_resamples=10_000, method="percentile",
        confidence_level=level, rng=np.random.default_rng(seed),
    )  # fmt: skip
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def expanded(level: float, count: int) -> float:
    """The level at which scipy's percentile interval is the expanded one."""
    tail = scipy.stats.norm.sf(np.sqrt(count / (count - 1)) * scipy.stats.t.isf((1 - level) / 2, count - 1))
    return float(1 - 2 * tail)


def test_equal_arms_of_few_prompts_are_told_equal() -> None:
    """Two arms of one speed whose prompts vary: more intervals contain 1 than without the expansion."""
    rng = np.random.default_rng(0)
    inside = 0
    for seed in range(300):
        tokens = np.full(5, 100.0)
        seconds = rng.lognormal(0.0, 0.1, (2, 5))
        found = stats.rate_ratio((tokens, seconds[0]), (tokens, seconds[1]), Bootstrap(resamples=400, seed=seed))
        inside += found.low <= 1.0 <= found.high
    assert inside >= 265  # 272 of 300; 253 without the expansion, which is exact for normal means only


def test_rate_ratio_agrees_with_scipy() -> None:
    a_tokens, a_s, b_tokens, b_s = paired()

    def statistic(ta: np.ndarray, sa: np.ndarray, tb: np.ndarray, sb: np.ndarray, axis: int = -1) -> np.ndarray:
        return (ta.sum(axis) / sa.sum(axis)) / (tb.sum(axis) / sb.sum(axis))

    found = stats.rate_ratio((a_tokens, a_s), (b_tokens, b_s), Bootstrap(seed=3))
    np.testing.assert_allclose(
        (found.low, found.high),
        scipy_interval(statistic, [a_tokens, a_s, b_tokens, b_s], 3, expanded(0.95, len(a_s))),
        rtol=1e-12,
    )
    # Another seed moves an end by far less than the interval is wide.
    other = scipy_interval(statistic, [a_tokens, a_s, b_tokens, b_s], 4)
    assert abs(other[0] - found.low) < 0.05 * (found.high - found.low)
    assert found.value == pytest.approx(float(a_tokens.sum() / a_s.sum() * b_s.sum() / b_tokens.sum()))
    assert found.low < found.value < found.high


def test_mean_gain_agrees_with_scipy() -> None:
    _, a_s, _, b_s = paired(1)
    gains = b_s / a_s - 1
    found = stats.ratio_of_sums(gains, np.ones(len(gains)), Bootstrap(seed=5, level=0.9))
    expected = scipy.stats.bootstrap(
        (gains,), np.mean, n_resamples=10_000, method="percentile", confidence_level=expanded(0.9, len(gains)),
        rng=np.random.default_rng(5),
    ).confidence_interval  # fmt: skip
    np.testing.assert_allclose((found.low, found.high), (expected.low, expected.high), rtol=1e-12)
    assert found.value == pytest.approx(float(gains.mean()))
    assert (found.level, found.num_prompts, found.resamples) == (0.9, 30, 10_000)


def test_ratio_of_sums_by_enumeration() -> None:
    top, bottom = np.array([1.0, 4.0, 2.0]), np.array([1.0, 2.0, 4.0])
    draws = [top[list(pick)].sum() / bottom[list(pick)].sum() for pick in itertools.product(range(3), repeat=3)]
    found = stats.ratio_of_sums(top, bottom)
    assert found.value == 1.0
    # The ends are values of the 27 equally likely draws, at the tails of 2.5 %.
    assert found.low == pytest.approx(sorted(draws)[0])
    assert found.high == pytest.approx(sorted(draws)[-1])


def test_chunks_do_not_change_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, seconds, _, _ = paired(2)
    whole = stats.ratio_of_sums(tokens, seconds)
    monkeypatch.setattr(stats, "CHUNK_CELLS", 977)
    assert stats.ratio_of_sums(tokens, seconds) == whole


def test_coverage_of_a_known_mean() -> None:
    rng = np.random.default_rng(7)
    hits = 0
    for seed in range(200):
        found = stats.ratio_of_sums(rng.normal(2.0, 1.0, size=40), np.ones(40), Bootstrap(resamples=500, seed=seed))
        hits += found.low <= 2.0 <= found.high
    # 95 % nominal; the percentile interval of 40 points covers about 93 %: below 170 of 200 has probability < 1e-5.
    assert 170 <= hits < 200


def test_mean_over_sets() -> None:
    one, two = paired(3)[:2], paired(4, prompts=12)[:2]
    found = stats.mean_over_sets(lambda sums: sums[0] / sums[1], [one, two])
    expected = (one[0].sum() / one[1].sum() + two[0].sum() / two[1].sum()) / 2
    assert found.value == pytest.approx(float(expected))
    assert found.low < found.value < found.high
    assert found.num_prompts == 42
    alone = stats.mean_over_sets(lambda sums: sums[0] / sums[1], [one])
    assert alone == stats.ratio_of_sums(*one)


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (1, 0), (5, 5), (9, 1), (2, 17), (30, 12), (180, 120)])
def test_sign_test_is_the_exact_binomial(wins: int, losses: int) -> None:
    arm = np.array([1.0] * wins + [0.0] * losses + [0.5] * 3)
    base = np.array([0.0] * wins + [1.0] * losses + [0.5] * 3)
    found = stats.sign_test(arm, base)
    assert (found.wins, found.losses, found.ties) == (wins, losses, 3)
    decided = wins + losses
    tail = sum(math.comb(decided, k) for k in range(min(wins, losses) + 1))
    assert found.p_value == pytest.approx(min(1.0, 2 * tail / 2**decided), rel=1e-12)


def test_wrong_use() -> None:
    with pytest.raises(UsageError, match="one length"):
        stats.ratio_of_sums(np.ones(3), np.ones(2))
    with pytest.raises(UsageError, match="no prompts"):
        stats.ratio_of_sums(np.zeros(0), np.zeros(0))
    with pytest.raises(UsageError, match="not finite"):
        stats.sign_test(np.array([1.0, np.nan]), np.ones(2))
    with pytest.raises(UsageError, match="resamples 0"):
        Bootstrap(resamples=0)
    with pytest.raises(UsageError, match=r"level 1\.5"):
        Bootstrap(level=1.5)


def test_a_ratio_of_what_is_not_known_is_not_known() -> None:
    assert stats.ratio(3.0, 2.0) == 1.5 and stats.ratio(0.0, 2.0) == 0.0
    assert stats.ratio(None, 2.0) is stats.ratio(3.0, None) is stats.ratio(3.0, 0.0) is None
