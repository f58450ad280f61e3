"""Which width a policy would choose on hardware that is not here: a cost table against mean masses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..cost import schema
from ..cost.profile import CAST_CONTEXT, CostProfile
from ..errors import CostError, UsageError
from ..policy import POLICIES, WidthRule
from ..policy.cast import FIT_ROWS
from ..policy.deploy import check_grid, deployment


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The width that a policy would deploy, and what every width would give."""

    width: int
    """Drafted nodes."""
    threshold: float
    """Least mass that another node would need at that width: tokens per second times c1."""
    c1: float
    """Seconds per row, target forward alone, never negative."""
    tokens_per_s_by_width: dict[int, float]
    """Expected tokens per second under the measured curve."""
    slope_clamped: bool
    """True when the fitted slope was negative and counts as 0."""

    def to_json(self) -> dict[str, Any]:
        """The four published fields; widths become text keys."""
        return {
            "width": self.width,
            "threshold": self.threshold,
            "c1": self.c1,
            "tokens_per_s_by_width": {str(width): rate for width, rate in self.tokens_per_s_by_width.items()},
        }


def load_masses(path: str | Path) -> np.ndarray:
    """Read a JSON list of mean sorted masses; raises CostError naming the file when it is not one or grows."""
    path = Path(path)
    try:
        return schema.masses(schema.read_json(path), "masses")
    except CostError as error:
        message = str(error)
        raise CostError(message if message.startswith(str(path)) else f"{path}: {message}") from error


def width_policies() -> tuple[str, ...]:
    """Names of the policies that can choose a width from masses and costs."""
    return tuple(name for name, policy in POLICIES.items() if policy.needs_costs)


def simulate(
    profile: CostProfile,
    masses: np.ndarray | Sequence[float],
    policy: str,
    *,
    grid: Sequence[int] | None = None,
    draft_ms: float | None = None,
    fit_rows: tuple[int, int] = FIT_ROWS,
    context: int = CAST_CONTEXT,
) -> SimulationResult:
    """Return the width that `policy` chooses on mean masses (g,), at the measured context nearest `context`.

    `grid` lists the allowed widths (default: 0 to the last with a mass and measured rows), `draft_ms` replaces the
    profile's drafting cost, `fit_rows` is the range of the slope c1. `auto` takes the fixed point of its rate: no
    calibration, no skipping.
    Raises UsageError for a policy that has no such rule, CostError for masses that grow.
    """
    if policy not in width_policies():
        raise UsageError(f"policy {policy!r} takes no width from costs: expected one of {', '.join(width_policies())}")
    rule = POLICIES[policy]()
    assert isinstance(rule, WidthRule)
    sorted_masses = schema.masses(np.asarray(masses, np.float64).tolist(), "masses")
    if draft_ms is not None:
        profile = profile.with_draft(draft_ms / 1e3)
    widest = min(len(sorted_masses), int(profile.rows[-1]) - 1)
    widths = np.array(check_grid(tuple(grid))) if grid else np.arange(widest + 1)
    at_context = profile.nearest_context(context)
    fit = profile.slope(*fit_rows, context=at_context)
    measured, seen = (
        deployment(profile, sorted_masses, widths, context=at_context, curve=curve, c1=fit.c1)
        for curve in ("measured", rule.curve)
    )
    chosen = rule.pick_width(seen)
    return SimulationResult(
        width=int(widths[chosen]),
        threshold=float(measured.threshold[chosen]),
        c1=fit.c1,
        tokens_per_s_by_width={int(width): float(rate) for width, rate in zip(widths, measured.rate, strict=True)},
        slope_clamped=fit.clamped,
    )
