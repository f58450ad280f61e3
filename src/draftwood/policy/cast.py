"""The width of CAST: one number per deployment, from mean gains and the slope of the verify cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from ..cost.profile import CAST_CONTEXT, CostProfile
from ..errors import CostError, UsageError
from .base import NOBODY, Outside, PolicyState, RoundCosts, RoundOutcome, SharedRound
from .deploy import Deployment, check_grid, deployment
from .options import CANDIDATES, INTERNAL, LARGEST_TREE, about, settle
from .rules import check_nodes, expected_accepted, need_costs

FIT_ROWS = (16, 128)


@dataclass(frozen=True, slots=True)
class Cast:
    """Grow while gain(n + 1) >= (1 + Phi(n)) / C(n + 1) * c1, once, on mean gains (CAST, Theorem 2).

    c1 is the affine slope of the target forward over `fit_rows`, C the measured curve at the context nearest 1,024.
    Several requests that share take the next global node while its gain >= (R + G) / C * c1(R) (Proposition 3).
    """

    candidates: int = field(default=8, metadata=CANDIDATES)
    """K, candidates kept per depth."""
    max_nodes: int = field(default=64, metadata=LARGEST_TREE)
    """Largest allowed width."""
    # The flag --min-nodes is that of a batch, whose round is divided.
    min_nodes: int = field(default=0, metadata=about("Smallest allowed width (cast).", "N", flag="--min-width"))
    """Smallest allowed width."""
    grid: tuple[int, ...] | None = field(default=None, metadata=about("Allowed widths (cast); default: all.", "N,N"))
    """Allowed widths; None: every width from min_nodes to max_nodes."""
    fit_rows: tuple[int, int] = field(
        default=FIT_ROWS, metadata=about("Rows over which the slope is fitted (cast); default: 16,128.", "A,B")
    )
    """Rows over which the slope is fitted."""
    width: int | None = field(default=None, metadata=INTERNAL)
    """The chosen width; None until a profile is given."""
    slopes: tuple[tuple[int, float], ...] = field(default=(), metadata=INTERNAL)
    """(R, c1(R)) in seconds per row, increasing R."""
    slope_clamped: bool = field(default=False, metadata=INTERNAL)
    """True when the fitted slope was negative and counts as 0."""

    name: ClassVar[str] = "cast"
    drafts: ClassVar[bool] = True
    needs_costs: ClassVar[bool] = True
    shares: ClassVar[bool] = False
    curve: ClassVar[str] = "measured"

    def __post_init__(self) -> None:
        settle(self)
        check_nodes(self.candidates, self.max_nodes)
        if not 0 <= self.min_nodes <= self.max_nodes:
            raise UsageError(f"min_nodes {self.min_nodes}: expected 0 to max_nodes, {self.max_nodes}")
        if self.grid is not None:
            check_grid(self.grid)
        if not 1 <= self.fit_rows[0] < self.fit_rows[1]:
            raise UsageError(f"fit_rows {self.fit_rows}: expected two increasing numbers of rows, such as 16,128")

    def with_profile(self, profile: CostProfile) -> Cast:
        """Choose the width; raises CostError when the profile has no mean gains or too few rows to fit."""
        if profile.mean_gains is None:
            raise CostError("policy cast needs mean gains: expected a profile with mean_gains, as `profile` writes it")
        fits = [profile.slope(*self.fit_rows, requests=int(count)) for count in profile.requests]
        widths = np.array(self.grid) if self.grid else np.arange(self.min_nodes, self.max_nodes + 1)
        context = profile.nearest_context(CAST_CONTEXT)
        plan = deployment(profile, profile.mean_gains, widths, context=context, curve=self.curve, c1=fits[0].c1)
        slopes = tuple((int(count), fit.c1) for count, fit in zip(profile.requests, fits, strict=True))
        width = int(widths[self.pick_width(plan)])
        return replace(self, width=width, slopes=slopes, slope_clamped=fits[0].clamped)

    def wants_draft(self, state: PolicyState, costs: RoundCosts | None) -> bool:
        """Whenever the width is not 0."""
        return self._width() > 0

    def choose(self, gains: np.ndarray, round_cost_s: np.ndarray | None, base_tokens: float, state: PolicyState) -> int:
        """Return the deployment's width, or all nodes that exist."""
        return min(self._width(), len(gains))

    def observe(self, state: PolicyState, outcome: RoundOutcome) -> PolicyState:
        """Stateless."""
        return state

    def merge(self, states: Sequence[PolicyState], outside: Outside = NOBODY) -> PolicyState:
        """Stateless."""
        return PolicyState()

    def expected_gains(self, gains: np.ndarray, state: PolicyState) -> np.ndarray:
        """The scores as they are."""
        return gains

    def choose_shared(
        self, gains: np.ndarray, round_cost_s: np.ndarray, state: PolicyState, shared: SharedRound
    ) -> int:
        """Return the global number of nodes: stop before the first whose gain is below the batch's threshold."""
        phi = expected_accepted(gains, shared.most_steps(self.max_nodes))
        cost_s = need_costs(self.name, round_cost_s, len(phi))
        self._width()
        counts, slopes = zip(*self.slopes, strict=True)
        c1 = float(np.interp(shared.requests + shared.outside.requests, counts, slopes))
        fails = gains[: len(phi) - 1] < (shared.base_tokens + phi[:-1]) / cost_s[:-1] * c1
        return int(fails.argmax()) if fails.any() else len(phi) - 1

    def pick_width(self, deployment: Deployment) -> int:
        """Step to the next width while the node after the present one passes; the ends are boundary cases."""
        fails = deployment.next_gain < deployment.threshold
        return int(fails.argmax()) if fails.any() else len(deployment.widths) - 1

    def _width(self) -> int:
        if self.width is None:
            raise CostError("policy cast has no width yet: it needs a cost profile, pass one with --profile")
        return self.width
