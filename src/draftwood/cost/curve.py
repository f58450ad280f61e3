"""A cost curve over rows: measured points, what lies between them, and what lies beyond."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from . import fit


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Seconds over rows at one context.

    Between grid rows the curve is linear, except across a step: a step at row s says that the cost jumps between s
    and s + 1, so the gap that holds it is flat on either side. With every padded size of a captured graph given as
    grid row and as step, that is the step function "smallest size that fits".
    """

    rows: np.ndarray
    """(n,) int64 increasing."""
    seconds: np.ndarray
    """(n,) float64."""
    steps: tuple[int, ...] = ()
    """At most one step inside a gap."""

    def table(self, num_rows: int) -> np.ndarray:
        """Return (num_rows + 1,) float64 seconds of 0..num_rows rows; entry 0 repeats entry 1.

        Beyond the grid the last segment continues, but never falls below the smallest measured value.
        """
        at = np.arange(num_rows + 1)
        values: np.ndarray = np.interp(at, self.rows, self.seconds)
        for step in self.steps:
            right = int(np.searchsorted(self.rows, step, side="right"))
            if 0 < right < len(self.rows):
                low, high = int(self.rows[right - 1]), int(self.rows[right])
                values[low : min(step, num_rows) + 1] = self.seconds[right - 1]
                values[step + 1 : min(high, num_rows) + 1] = self.seconds[right]
        last = int(self.rows[-1])
        if num_rows > last and len(self.rows) > 1:
            beyond = at[last + 1 :] - last
            values[last + 1 :] = np.maximum(self.seconds[-1] + beyond * self._last_slope(), self.seconds.min())
        values[0] = values[min(1, num_rows)]
        return values

    def _last_slope(self) -> float:
        """Seconds per row of the last segment; a step in it is spread over the whole segment."""
        rise = float(self.seconds[-1] - self.seconds[-2])
        return rise / float(self.rows[-1] - self.rows[-2])


def measured_curve(rows: np.ndarray, seconds: np.ndarray, spread: np.ndarray | None, steps: tuple[int, ...]) -> Curve:
    """The medians as they are."""
    return Curve(rows, seconds, steps)


def monotone_curve(rows: np.ndarray, seconds: np.ndarray, spread: np.ndarray | None, steps: tuple[int, ...]) -> Curve:
    """The isotonic fit; dips beyond the spread stay."""
    return Curve(rows, fit.monotone(seconds, spread), steps)


def convex_curve(rows: np.ndarray, seconds: np.ndarray, spread: np.ndarray | None, steps: tuple[int, ...]) -> Curve:
    """The convex regression; it knows no steps, which is what a rule that needs convexity pays."""
    return Curve(rows, fit.convex(rows, seconds))


CurveFit = Callable[[np.ndarray, np.ndarray, "np.ndarray | None", "tuple[int, ...]"], Curve]

CURVES: Mapping[str, CurveFit] = {"measured": measured_curve, "monotone": monotone_curve, "convex": convex_curve}
