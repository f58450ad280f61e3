"""Paired statistics over prompts: bootstrap intervals and the sign test.

Prompts are the unit: all arms of a comparison are resampled together, so what differs between prompts cancels.
Intervals are percentile intervals; each function takes a seed and gives the same interval for the same input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import UsageError

RESAMPLES = 10_000
LEVEL = 0.95
CHUNK_CELLS = 4_000_000


@dataclass(frozen=True, slots=True)
class Interval:
    """A statistic with its percentile bootstrap interval."""

    value: float
    """The statistic of the prompts as measured."""
    low: float
    high: float
    level: float
    resamples: int
    num_prompts: int


@dataclass(frozen=True, slots=True)
class SignTest:
    """How often one arm beats the other, and how likely so lopsided a count is if neither is better."""

    wins: int
    losses: int
    ties: int
    """Left out of the test."""
    p_value: float
    """Two-sided, exact binomial; 1 without a decided pair."""


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """How an interval is drawn."""

    resamples: int = RESAMPLES
    level: float = LEVEL
    seed: int = 0

    def __post_init__(self) -> None:
        if self.resamples < 1:
            raise UsageError(f"resamples {self.resamples}: expected at least 1")
        if not 0 < self.level < 1:
            raise UsageError(f"level {self.level}: expected a number between 0 and 1")


def ratio_of_sums(numerator: np.ndarray, denominator: np.ndarray, how: Bootstrap | None = None) -> Interval:
    """Interval of sum(numerator) / sum(denominator), both (prompts,): tokens/s, milliseconds per token, mean rows."""
    return mean_over_sets(lambda sums: sums[0] / sums[1], [(numerator, denominator)], how)


def rate_ratio(
    arm: tuple[np.ndarray, np.ndarray], base: tuple[np.ndarray, np.ndarray], how: Bootstrap | None = None
) -> Interval:
    """Interval of the speed of `arm` over that of `base`, each a pair (tokens, seconds) of (prompts,) arrays.

    Speed is sum(tokens) / sum(seconds); the two arms see the same resampled prompts.
    """
    return mean_over_sets(lambda sums: (sums[0] / sums[1]) / (sums[2] / sums[3]), [(*arm, *base)], how)


def mean_over_sets(
    statistic: Callable[[np.ndarray], np.ndarray], sets: Sequence[Sequence[np.ndarray]], how: Bootstrap | None = None
) -> Interval:
    """Interval of the mean over prompt sets of a statistic of sums; each set is resampled by itself.

    `sets` holds one tuple of (prompts,) columns a set; `statistic` maps (columns, n) sums to (n,) values.
    """
    if not sets:
        raise UsageError("no prompt set to average over")
    how = how or Bootstrap()
    rng = np.random.default_rng(how.seed)
    values, draws = [], []
    for columns in sets:
        _check(columns)
        table = np.stack([np.asarray(column, dtype=np.float64) for column in columns])  # (columns, prompts)
        count, parts = table.shape[1], []
        step = max(1, CHUNK_CELLS // table.size)
        for start in range(0, how.resamples, step):
            picks = rng.integers(0, count, size=(min(step, how.resamples - start), count))
            parts.append(statistic(table[:, picks].sum(axis=2)))
        values.append(float(statistic(table.sum(axis=1, keepdims=True))[0]))
        draws.append(np.concatenate(parts))
    prompts = [len(columns[0]) for columns in sets]
    tail = expanded_tail(min(prompts), (1 - how.level) / 2)
    low, high = np.quantile(np.mean(draws, axis=0), [tail, 1 - tail])
    return Interval(float(np.mean(values)), float(low), float(high), how.level, how.resamples, sum(prompts))


def expanded_tail(count: int, tail: float) -> float:
    """The share to cut off at either end, in place of `tail`, so that intervals of few prompts are not too narrow.

    A resample of n varies like n - 1, and their spread is itself estimated: quantiles of Student's t in place of the
    normal ones (Hesterberg, What teachers should know about the bootstrap, 2015: expanded percentile intervals). Of a
    single prompt nothing can be said; `tail` is returned.
    """
    from scipy.stats import norm, t  # a second of imports

    if count < 2:
        return tail
    return float(norm.cdf(-np.sqrt(count / (count - 1)) * t.ppf(1 - tail, count - 1)))


def sign_test(arm: np.ndarray, base: np.ndarray) -> SignTest:
    """Exact two-sided sign test of paired values, larger is better; ties are left out.

    The p-value is the probability, under a fair coin, of all outcomes at most as likely as the one seen.
    """
    from scipy.stats import binomtest  # a second of imports, for one number of a report

    _check((arm, base))
    difference = np.asarray(arm, dtype=np.float64) - np.asarray(base, dtype=np.float64)
    wins, losses = int(np.sum(difference > 0)), int(np.sum(difference < 0))
    decided = wins + losses
    p_value = float(binomtest(wins, decided).pvalue) if decided else 1.0
    return SignTest(wins, losses, len(difference) - decided, p_value)


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """The quotient; None where either is not known or there is nothing to divide by."""
    return numerator / denominator if numerator is not None and denominator else None


def _check(columns: Sequence[np.ndarray]) -> None:
    lengths = {len(column) for column in columns}
    if len(lengths) != 1:
        raise UsageError(f"paired columns of {sorted(lengths)} prompts: expected one length")
    if lengths == {0}:
        raise UsageError("no prompts to resample")
    if not all(np.all(np.isfinite(column)) for column in columns):
        raise UsageError("a value of the comparison is not finite")
