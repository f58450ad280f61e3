"""Fits, each by a second route."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from draftwood.cost.fit import affine, convex, is_convex, monotone
from draftwood.errors import CostError


def noisy_curve(seed: int, count: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """An uneven grid and noisy, roughly convex seconds."""
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.choice(np.arange(1, 130), count, replace=False))
    seconds = 0.02 + 1e-4 * rows + 2e-6 * np.maximum(rows - 60, 0) ** 2
    return rows, seconds * (1 + 0.1 * rng.standard_normal(count))


def largest_of_least_means(values: np.ndarray) -> list[float]:
    """The isotonic fit by its closed form: the largest, over starts, of the least mean over ends."""
    count = len(values)
    return [max(min(values[a : b + 1].mean() for b in range(at, count)) for a in range(at + 1)) for at in range(count)]


def test_without_spreads_the_fit_is_isotonic() -> None:
    rng = np.random.default_rng(0)
    for count in (1, 2, 5, 40):
        values = rng.standard_normal(count)
        np.testing.assert_allclose(monotone(values), largest_of_least_means(values), atol=1e-12)


def test_a_dip_beyond_the_spread_stays() -> None:
    values = np.array([1.0, 1.2, 1.19, 1.5, 1.1, 1.3])
    spread = np.full(6, 0.05)
    np.testing.assert_allclose(monotone(values, spread), [1.0, 1.195, 1.195, 1.5, 1.1, 1.3])
    np.testing.assert_allclose(monotone(values), largest_of_least_means(values))
    assert np.all(np.diff(monotone(values)) >= 0)


@pytest.mark.parametrize("seed", range(6))
def test_convex_fit_is_the_constrained_least_squares(seed: int) -> None:
    """A general quadratic solver on the values themselves: rising, convex, nearest to the data."""
    rows, seconds = noisy_curve(seed)
    unit = seconds.max()
    slopes = np.diff(np.eye(len(rows)), axis=0) / np.diff(rows)[:, None]
    constraints = [
        {"type": "ineq", "fun": lambda x: slopes[0] @ x * 100},
        {"type": "ineq", "fun": lambda x: np.diff(slopes @ x) * 100},
    ]
    solved = minimize(
        lambda x: float(((x - seconds / unit) ** 2).sum()),
        np.full(len(rows), seconds.mean() / unit),
        jac=lambda x: 2 * (x - seconds / unit),
        constraints=constraints,
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-13},
    )
    assert solved.success
    np.testing.assert_allclose(convex(rows, seconds) / unit, solved.x, atol=2e-6)


def test_convex_fit_leaves_a_convex_curve_alone_and_flattens_a_step() -> None:
    rows = np.array([1, 8, 9, 32, 64])
    curve = 0.01 + 1e-5 * rows**2
    np.testing.assert_allclose(convex(rows, curve), curve, rtol=1e-9)
    step = np.array([1.0, 1.0, 2.0, 2.0, 2.0])
    fitted = convex(rows, step)
    assert fitted[1] > 1.2 and np.all(np.diff(fitted) >= -1e-12)


def test_convex_fit_of_falling_seconds_is_flat() -> None:
    np.testing.assert_allclose(convex(np.array([1, 2, 5]), np.array([3.0, 2.0, 1.0])), 2.0)


def test_affine_slope_equals_polyfit() -> None:
    rows, seconds = noisy_curve(3)
    inside = (rows >= 16) & (rows <= 100)
    found = affine(rows, seconds, 16, 100)
    assert found.raw_slope == pytest.approx(np.polyfit(rows[inside], seconds[inside], 1)[0])
    assert found.rows_used == inside.sum()


def test_a_negative_slope_counts_as_zero() -> None:
    found = affine(np.array([16, 32, 64]), np.array([3.0, 2.0, 1.0]), 16, 64)
    assert found.c1 == 0.0 and found.raw_slope < 0 and found.clamped


def test_too_few_rows_to_fit() -> None:
    with pytest.raises(
        CostError, match="fit rows 16,20: expected a range with at least 2 of the measured rows 1 to 64"
    ):
        affine(np.array([1, 16, 64]), np.ones(3), 16, 20)


def test_convexity_check() -> None:
    assert is_convex(np.array([1.0, 1.0, 1.0])) and is_convex(np.array([1.0, 2.0]))
    assert is_convex(np.array([3.0, 1.0, 0.0, 0.0]))
    assert not is_convex(np.array([1.0, 2.0, 2.5]))
