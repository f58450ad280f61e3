"""The live correction: two numbers follow how this machine runs now, a third follows drafting."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from ..errors import CostError
from .rounds import MAX_FACTOR, MIN_FACTOR, LiveFactors

_FORGET = 0.93
_START_WEIGHT = 4.0
_TIE_SPREAD = 0.5  # how far apart base and slope are expected to be, before a round says anything
_DOUBT = 4.0  # added to the square of that spread after a change, forgotten like the past
_FIRST_NOISE = 0.05
_LEAST_NOISE = 0.01
_NOISE_FORGET = 0.95
_SURPRISE = 3.0  # standard deviations
_LEAST_SURPRISE = 0.03
_STREAK = 3  # surprises of one sign in a row that are taken for a change of the machine
_KEPT = 0.05  # share of the past that survives such a change


@dataclass(frozen=True, slots=True)
class Watch:
    """What a residual is allowed to be: the noise so far, and how many surprises came in a row."""

    noise: float = _FIRST_NOISE
    """Standard deviation of a round's seconds over its prediction."""
    streak: int = 0
    """Surprises in a row, negative when rounds were faster than predicted."""

    def add(self, residual: float) -> Watch:
        """Learn from one residual; the noise moves as if no residual exceeded a surprise."""
        streak = 0
        if abs(residual) > self.limit:
            sign = 1 if residual > 0 else -1
            streak = sign * (abs(self.streak) + 1 if self.streak * sign > 0 else 1)
        inside = min(abs(residual), self.limit)
        noise = math.sqrt(_NOISE_FORGET * self.noise**2 + (1.0 - _NOISE_FORGET) * inside**2)
        return Watch(max(noise, _LEAST_NOISE), streak)

    @property
    def limit(self) -> float:
        """The largest residual that is not a surprise."""
        return max(_SURPRISE * self.noise, _LEAST_SURPRISE)

    @property
    def changed(self) -> bool:
        """True when the surprises in a row say that the machine itself changed."""
        return abs(self.streak) >= _STREAK

    def clip(self, residual: float) -> float:
        """Bound a residual, unless the machine changed: one stall must not tip a choice."""
        return residual if self.changed else min(max(residual, -self.limit), self.limit)


@dataclass(frozen=True, slots=True)
class LiveCosts:
    """Exponentially weighted least squares of seconds = base C(1) + slope (C(M) - C(1)), relative to the prediction.

    Every round counts alike whatever it cost: it is divided by the profile's own prediction, so its two shares add up
    to 1. One width alone cannot tell base from slope, so they are tied together as strongly as the noise demands:
    what is not known to be otherwise is taken as a common factor, which no policy sees. Residuals are clipped; when
    several in a row exceed the clip on one side, most of the past is dropped and the change is taken as it is.
    """

    base_base: float = _START_WEIGHT / 2
    base_slope: float = 0.0
    slope_slope: float = _START_WEIGHT / 2
    base_seen: float = _START_WEIGHT / 2
    slope_seen: float = _START_WEIGHT / 2
    doubt: float = 0.0
    draft: float = 1.0
    target_watch: Watch = field(default_factory=Watch)
    draft_watch: Watch = field(default_factory=Watch)

    def observe_target(self, single_s: float, rows_s: float, measured_s: float) -> LiveCosts:
        """Learn from one target forward with its host work.

        `single_s` = C(1) and `rows_s` = C(M) as the profile predicts them, uncorrected; `measured_s` as it was.
        """
        _check(measured_s, rows_s)
        factors = self.factors()
        base_share = single_s / rows_s
        slope_share = 1.0 - base_share
        expected = factors.base * base_share + factors.slope * slope_share
        residual = measured_s / rows_s / expected - 1.0
        watch = self.target_watch.add(residual)
        seen = expected * (1.0 + watch.clip(residual))
        # After a change the past is kept as if all of it had changed by the same factor, until rounds say otherwise.
        forget = _FORGET * (_KEPT if watch.changed else 1.0)
        rescale = forget * (1.0 + residual if watch.changed else 1.0)
        return replace(
            self,
            base_base=forget * self.base_base + base_share * base_share,
            base_slope=forget * self.base_slope + base_share * slope_share,
            slope_slope=forget * self.slope_slope + slope_share * slope_share,
            base_seen=rescale * self.base_seen + base_share * seen,
            slope_seen=rescale * self.slope_seen + slope_share * seen,
            doubt=_DOUBT if watch.changed else _FORGET * self.doubt,
            target_watch=watch,
        )

    def observe_draft(self, predicted_s: float, measured_s: float) -> LiveCosts:
        """Learn from one drafter pass; a profile without drafting time teaches nothing."""
        if predicted_s == 0.0:
            return self
        _check(measured_s, predicted_s)
        residual = measured_s / predicted_s / self.draft - 1.0
        watch = self.draft_watch.add(residual)
        gain = 1.0 - _FORGET * (_KEPT if watch.changed else 1.0)
        draft = _bound(self.draft * (1.0 + gain * watch.clip(residual)))
        return replace(self, draft=draft, draft_watch=watch)

    def factors(self) -> LiveFactors:
        """The factors for the next round, each within [1/4, 4]."""
        tie = self.target_watch.noise**2 / (_TIE_SPREAD**2 + self.doubt)
        bb, bs, ss = self.base_base + tie, self.base_slope - tie, self.slope_slope + tie
        determinant = bb * ss - bs * bs
        base = (ss * self.base_seen - bs * self.slope_seen) / determinant
        slope = (bb * self.slope_seen - bs * self.base_seen) / determinant
        return LiveFactors(_bound(base), _bound(slope), self.draft)


def _bound(value: float) -> float:
    return min(max(value, MIN_FACTOR), MAX_FACTOR)


def _check(measured_s: float, predicted_s: float) -> None:
    if not (0.0 < measured_s < math.inf and 0.0 < predicted_s < math.inf):
        raise CostError(f"measured {measured_s} s against predicted {predicted_s} s: expected both finite and above 0")
