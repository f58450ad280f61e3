"""Fits of measured seconds over rows: monotone, convex and affine. Pure functions of numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import isotonic_regression, nnls

from ..errors import CostError


@dataclass(frozen=True, slots=True)
class AffineFit:
    """A straight line through part of a curve."""

    c1: float
    """Seconds per row used by the stopping rule, never negative."""
    raw_slope: float
    """Seconds per row as fitted."""
    rows_used: int
    """Grid points inside the range."""

    @property
    def clamped(self) -> bool:
        """True when the fitted slope was negative and counts as 0."""
        return self.raw_slope < 0


def monotone(values: np.ndarray, spread: np.ndarray | None = None) -> np.ndarray:
    """Return the isotonic fit of `values` (n,), keeping dips that the measurement's spread does not explain.

    A drop larger than the larger `spread` (n,) of its two ends is real (a kernel that gets faster at a tile edge), so
    each side of it is fitted on its own. Without spreads every drop counts as noise.
    """
    if spread is None:
        spread = np.full(len(values), np.inf)
    real_drop = values[:-1] - values[1:] > np.maximum(spread[:-1], spread[1:])
    parts = np.split(values, np.flatnonzero(real_drop) + 1)
    return np.concatenate([isotonic_regression(part).x for part in parts])


def convex(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the convex, non-decreasing (n,) curve closest to `values` (n,) over `rows` (n,), any increasing grid.

    Least squares in the basis 1, (M - m_1), (M - m_2)+, ..., all coefficients non-negative: a hinge at every grid row
    but the last. The constant is the value at the first row, so its sign constrains nothing for positive seconds.
    Source: the convex regression of CaDDTree (arXiv 2606.01813), solved by non-negative least squares.
    """
    hinges = np.maximum(0.0, rows[:, None] - rows[None, :-1]).astype(np.float64)
    basis = np.column_stack([np.ones(len(rows)), hinges])  # (n, n)
    column_norm = np.linalg.norm(basis, axis=0)
    unit = float(np.max(values))
    coefficients, _ = nnls(basis / column_norm, values / unit)
    fitted: np.ndarray = (basis / column_norm) @ coefficients * unit
    return fitted


def affine(rows: np.ndarray, values: np.ndarray, low_row: int, high_row: int) -> AffineFit:
    """Fit c0 + c1 M by least squares over the grid rows in [low_row, high_row] (CAST, section 3.1).

    Raises CostError when fewer than two grid rows lie in the range.
    """
    inside = (rows >= low_row) & (rows <= high_row)
    count = int(inside.sum())
    if count < 2:
        raise CostError(
            f"fit rows {low_row},{high_row}: expected a range with at least 2 of the measured rows "
            f"{int(rows[0])} to {int(rows[-1])}"
        )
    centred = rows[inside] - rows[inside].mean()
    raw_slope = float(centred @ values[inside] / (centred @ centred))
    return AffineFit(max(raw_slope, 0.0), raw_slope, count)


def is_convex(cost_s: np.ndarray, tolerance: float = 1e-9, *, rows: np.ndarray | None = None) -> bool:
    """True when (n,) `cost_s` has no decreasing slope beyond rounding; over increasing `rows`, or 0, 1, 2, ..."""
    slopes = np.diff(cost_s) if rows is None else np.diff(cost_s) / np.diff(rows)
    return bool(np.all(np.diff(slopes) >= -tolerance * max(float(np.max(np.abs(cost_s))), 1e-300)))
