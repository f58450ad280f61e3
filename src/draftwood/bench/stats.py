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
    return _interval(lambda sums: sums[0] / sums[1], (numerator, denominator), how)


def rate_ratio(
    arm: tuple[np.ndarray, np.ndarray], base: tuple[np.ndarray, np.ndarray], how: Bootstrap | None = None
) -> Interval:
    """Interval of the speed of `arm` over that of `base`, each a pair (tokens, seconds) of (prompts,) arrays.

    Speed is sum(tokens) / sum(seconds); the two arms see the same resampled prompts.
    """
    return _interval(lambda sums: (sums[0] / sums[1]) / (sums[2] / sums[3]), (*arm, *base), how)


def mean(values: np.ndarray, how: Bootstrap | None = None) -> Interval:
    """Interval of the mean of (prompts,) values."""
    count = len(values)
    return _interval(lambda sums: sums[0] / count, (values,), how)


def mean_gain(time_s: np.ndarray, base_time_s: np.ndarray, how: Bootstrap | None = None) -> Interval:
    """Interval of the mean over prompts of base_time / time - 1, times per token of one prompt each (CAST, Table 3)."""
    _check((time_s, base_time_s))
    return mean(np.asarray(base_time_s, dtype=np.float64) / np.asarray(time_s, dtype=np.float64) - 1.0, how)


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
    values = [_statistic_of_sums(statistic, columns, rng, how) for columns in sets]
    point = float(np.mean([value for value, _ in values]))
    draws = np.mean([resampled for _, resampled in values], axis=0)
    return _percentiles(point, draws, how, sum(len(columns[0]) for columns in sets))


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


def _interval(
    statistic: Callable[[np.ndarray], np.ndarray], columns: Sequence[np.ndarray], how: Bootstrap | None
) -> Interval:
    how = how or Bootstrap()
    value, draws = _statistic_of_sums(statistic, columns, np.random.default_rng(how.seed), how)
    return _percentiles(value, draws, how, len(columns[0]))


def _statistic_of_sums(
    statistic: Callable[[np.ndarray], np.ndarray],
    columns: Sequence[np.ndarray],
    rng: np.random.Generator,
    how: Bootstrap,
) -> tuple[float, np.ndarray]:
    _check(columns)
    table = np.stack([np.asarray(column, dtype=np.float64) for column in columns])  # (columns, prompts)
    count = table.shape[1]
    step = max(1, CHUNK_CELLS // (count * len(table)))
    parts = []
    for start in range(0, how.resamples, step):
        picks = rng.integers(0, count, size=(min(step, how.resamples - start), count))
        parts.append(statistic(table[:, picks].sum(axis=2)))
    value = float(statistic(table.sum(axis=1, keepdims=True))[0])
    return value, np.concatenate(parts)


def _percentiles(value: float, draws: np.ndarray, how: Bootstrap, num_prompts: int) -> Interval:
    tail = (1 - how.level) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return Interval(value, float(low), float(high), how.level, how.resamples, num_prompts)


def _check(columns: Sequence[np.ndarray]) -> None:
    lengths = {len(column) for column in columns}
    if len(lengths) != 1:
        raise UsageError(f"paired columns of {sorted(lengths)} prompts: expected one length")
    if lengths == {0}:
        raise UsageError("no prompts to resample")
    if not all(np.all(np.isfinite(column)) for column in columns):
        raise UsageError("a value of the comparison is not finite")
