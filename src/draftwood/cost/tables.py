"""Look-up helpers of the cost profile: bracketing an axis, and what a batch adds."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..errors import CostError
from . import schema


class Bracket(NamedTuple):
    """Where a value lies on an axis: between entries low and low + 1, `weight` of the way."""

    low: int
    weight: float
    """In [0, 1] inside the axis, beyond it outside (the end segments continue); 0 on a one-entry axis."""


def bracket(axis: np.ndarray, value: float) -> Bracket:
    """Locate `value` on an increasing (n,) axis."""
    if len(axis) == 1:
        return Bracket(0, 0.0)
    at: list[float] = axis.tolist()  # bisecting a list of a few numbers is several times faster than an array
    low = min(max(bisect_right(at, value) - 1, 0), len(at) - 2)
    return Bracket(low, (value - at[low]) / (at[low + 1] - at[low]))


@dataclass(frozen=True, slots=True, eq=False)
class BatchCosts:
    """Target forwards of several requests, measured at a few points."""

    contexts: np.ndarray
    """(k,) int64."""
    rows: np.ndarray
    """(m,) int64 total rows of the pack."""
    verify_s: np.ndarray
    """(r - 1, k, m) float64, for the request counts after the first."""

    @classmethod
    def from_json(cls, value: object, num_counts: int) -> BatchCosts | None:
        """Read the `batch` object; None when there is none."""
        if value is None:
            return None
        if not isinstance(value, dict) or not {"rows", "contexts", "verify_s"} <= value.keys():
            raise CostError(f"batch is {value!r}: expected an object with rows, contexts and verify_s")
        contexts = schema.axis(value["contexts"], "batch.contexts", 0)
        rows = schema.axis(value["rows"], "batch.rows", 1)
        shape = (num_counts, len(contexts), len(rows))
        return cls(contexts, rows, schema.table(value["verify_s"], shape, "batch.verify_s", above=True))

    def to_json(self) -> dict[str, Any]:
        """The object that `from_json` reads."""
        return {
            "contexts": self.contexts.tolist(),
            "rows": self.rows.tolist(),
            "verify_s": self.verify_s.tolist(),
        }

    def extra_s(
        self, single_s: np.ndarray, counts: np.ndarray, context: int, requests: int, rows: np.ndarray
    ) -> np.ndarray:
        """Return (n,) seconds beyond a lone request at the same total `rows` (n,).

        `single_s` (k, m) are the lone request's seconds at the same points, `counts` (r,) the request counts. Linear
        in the request count (0 at one request, the last segment continues) and in the context; constant beyond the
        measured rows.
        """
        extra = np.concatenate([np.zeros((1, *single_s.shape)), self.verify_s - single_s])  # (r, k, m)
        at, share = bracket(counts, requests)
        by_context = extra[at] + share * (extra[at + 1] - extra[at])  # (k, m)
        low, weight = bracket(self.contexts, min(max(context, self.contexts[0]), self.contexts[-1]))
        by_rows = by_context[low]
        if weight:
            by_rows = by_rows + weight * (by_context[low + 1] - by_rows)
        by_grid: np.ndarray = np.interp(rows, self.rows, by_rows)
        return by_grid
