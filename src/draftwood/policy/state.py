"""What `auto` remembers, as frozen values: the rate, whether drafting pays, and how well calibrated the scores are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from .base import NOBODY, Outside

RATE_DISCOUNT = 0.9
START_ROUNDS = 5.0
START_INTERVAL = 16
"""Most rounds that a new request waits before it tries again what did not pay for the last one."""
ENGINE_DISCOUNT = 0.97
PROBE_SHARE = 0.01
DOUBT = 1.0
_SCORE_MARGIN = 1e-6
_LEAST_SCALE = 0.05


@dataclass(frozen=True, slots=True)
class Rate:
    """Committed tokens over predicted seconds, both discounted per round."""

    tokens: float
    seconds: float
    weight: float
    """Discounted number of rounds behind the two sums."""

    @classmethod
    def start(cls, tokens: float, seconds: float) -> Rate:
        """The state before the first round: an expected round, counted START_ROUNDS times."""
        return cls(START_ROUNDS * tokens, START_ROUNDS * seconds, START_ROUNDS)

    def add(self, tokens: float, seconds: float) -> Rate:
        """The state after a round."""
        return Rate(
            RATE_DISCOUNT * self.tokens + tokens,
            RATE_DISCOUNT * self.seconds + seconds,
            RATE_DISCOUNT * self.weight + 1.0,
        )

    @property
    def per_second(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Payoff:
    """What drafted rounds really brought: accepted drafts, and seconds of verifying them, discounted per round."""

    accepted: float
    squares: float
    """Of accepted drafts."""
    extra_s: float
    """C(n + 1) - C(1), drafting left out."""
    weight: float

    @classmethod
    def start(cls, accepted: float, extra_s: float) -> Payoff:
        """The state before the first round: an expected round, counted START_ROUNDS times, as random as a Poisson."""
        return cls(accepted, accepted * (accepted + 1.0), extra_s, 1.0).weighing(START_ROUNDS)

    def weighing(self, rounds: float) -> Payoff:
        """The same means with the weight of `rounds` rounds."""
        scale = rounds / self.weight
        return Payoff(scale * self.accepted, scale * self.squares, scale * self.extra_s, rounds)

    def add(self, accepted: float, extra_s: float, discount: float) -> Payoff:
        """The state after a drafted round."""
        return Payoff(
            discount * self.accepted + accepted,
            discount * self.squares + accepted * accepted,
            discount * self.extra_s + extra_s,
            discount * self.weight + 1.0,
        )

    @property
    def variance(self) -> float:
        """Of the accepted drafts of a round."""
        mean = self.accepted / self.weight
        return max(self.squares / self.weight - mean * mean, 0.0)

    def surplus(self, rate: float, draft_s: float) -> float:
        """Tokens per drafted round beyond what its seconds are worth at `rate`, the benefit of the doubt included.

        Drafting pays when positive. The doubt is DOUBT standard errors of the mean: a discounted mean of a good
        drafter's noisy rounds must not fall below its price by chance, while a bad one leaves no doubt, since its
        rounds are all alike.
        """
        mean = self.accepted / self.weight
        error = math.sqrt(self.variance * (1.0 - RATE_DISCOUNT) / (1.0 + RATE_DISCOUNT))
        return mean + DOUBT * error - rate * (self.extra_s / self.weight + draft_s)


@dataclass(frozen=True, slots=True)
class Skipping:
    """How long ago the last draft was, and how long a stretch of skipped rounds may get before the next probe."""

    skipped: int = 0
    """Rounds since the last draft."""
    interval: int = 1
    """Rounds skipped before a probe; 0 after a draft that paid: the next round may draft again at once."""

    @property
    def probe_due(self) -> bool:
        """True when the next round should draft although drafting has not paid lately."""
        return self.skipped >= self.interval

    def after_skip(self) -> Skipping:
        """One more round without a draft."""
        return replace(self, skipped=self.skipped + 1)

    def after_draft(self, paid: bool, probe_s: float, plain_s: float) -> Skipping:
        """A draft that paid or cost nothing resets the interval; else it doubles until probing is under PROBE_SHARE.

        `probe_s`: seconds of the drafted round beyond a plain one; `plain_s`: C_plain.
        """
        if paid or probe_s <= 0.0:
            return Skipping(0, 0)
        share = probe_s / (probe_s + self.interval * plain_s)
        return Skipping(0, self.interval if share < PROBE_SHARE else max(1, 2 * self.interval))


@dataclass(frozen=True, slots=True)
class Calibration:
    """A node's hit rate as sigmoid(shift + scale * logit(score)), scale > 0: monotone, so the tree stays the same.

    A running Laplace approximation: per drafted round the information matrix is discounted by ENGINE_DISCOUNT, the
    round's nodes are added, and one Newton step is taken. Starts at the identity.
    """

    shift: float = 0.0
    scale: float = 1.0
    info_shift: float = 1.0
    info_cross: float = 0.0
    info_scale: float = 25.0

    @property
    def information(self) -> float:
        """How much it rests on: determinant of the information matrix."""
        return self.info_shift * self.info_scale - self.info_cross * self.info_cross

    def apply(self, gains: np.ndarray) -> np.ndarray:
        """Map (N,) scores to (N,) hit rates, order kept."""
        hit_rate: np.ndarray = 1.0 / (1.0 + np.exp(-(self.shift + self.scale * _logit(gains))))
        return hit_rate

    def add(self, gains: np.ndarray, hit: np.ndarray) -> Calibration:
        """Learn from the verified nodes of one round: (N,) scores, (N,) bool whether the whole path was committed."""
        x = _logit(gains)
        expected = self.apply(gains)
        spread = expected * (1.0 - expected)
        a = ENGINE_DISCOUNT * self.info_shift + float(spread.sum())
        b = ENGINE_DISCOUNT * self.info_cross + float((spread * x).sum())
        c = ENGINE_DISCOUNT * self.info_scale + float((spread * x * x).sum())
        error = hit - expected
        pull_shift, pull_scale = float(error.sum()), float((error * x).sum())
        determinant = a * c - b * b
        shift = self.shift + (c * pull_shift - b * pull_scale) / determinant
        scale = self.scale + (a * pull_scale - b * pull_shift) / determinant
        return Calibration(_clip(shift, 20.0), max(_LEAST_SCALE, _clip(scale, 20.0)), a, b, c)


@dataclass(frozen=True, slots=True)
class AutoRequest:
    """The half of the state that belongs to one request (or to several seen as one)."""

    rate: Rate
    payoff: Payoff
    plain_s: float
    """C_plain of the last round seen."""
    skipping: Skipping = field(default_factory=Skipping)
    requests: int = 1
    """Requests behind this state; tokens are their sum."""
    outside: Outside = NOBODY
    """Other requests of the same rounds: a second of a round costs their tokens too."""

    @property
    def tokens_per_s(self) -> float:
        """The current rate of everybody in the round, never below plain decoding."""
        return self.floored_rate(self.plain_s)

    def floored_rate(self, plain_s: float) -> float:
        """The same with a plain round of `plain_s` seconds."""
        seconds = self.rate.seconds / self.rate.weight
        rate = self.rate.per_second + self.outside.tokens / seconds
        return max(rate, (self.requests + self.outside.tokens) / plain_s)


@dataclass(frozen=True, slots=True)
class AutoEngine:
    """The half that all requests of an engine share."""

    payoff: Payoff | None = None
    calibration: Calibration = field(default_factory=Calibration)
    interval: int = 1
    """Rounds between the last request's probes: a new one does not start again at the full price of probing."""


def most_seen(engines: Sequence[AutoEngine]) -> AutoEngine | None:
    """All halves tell of one drafter: the payoff and the calibration with the most rounds behind them."""
    if not engines:
        return None
    payoffs = [engine.payoff for engine in engines if engine.payoff is not None]
    return AutoEngine(
        max(payoffs, key=lambda payoff: payoff.weight, default=None),
        max((engine.calibration for engine in engines), key=lambda one: (one != Calibration(), one.information)),
        min(engine.interval for engine in engines),
    )


def _logit(gains: np.ndarray) -> np.ndarray:
    clipped = np.clip(gains, _SCORE_MARGIN, 1.0 - _SCORE_MARGIN)
    logit: np.ndarray = np.log(clipped) - np.log1p(-clipped)
    return logit


def _clip(value: float, size: float) -> float:
    return math.copysign(min(abs(value), size), value)
