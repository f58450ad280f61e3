"""What a round costs on this machine: the file, and the one function that knows rows."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CostError
from ..files import write_file
from . import schema
from .curve import CURVES
from .fit import AffineFit, affine
from .identity import Identity
from .rounds import UNCORRECTED, LiveFactors, RoundCosts
from .tables import BatchCosts, bracket

CAST_CONTEXT = 1024
_CONVEX_CONTEXT_GRAIN = 128


class CostWarning(UserWarning):
    """A cost was asked for outside the measured grid; said once per profile and axis."""


@dataclass(frozen=True, slots=True, eq=False)
class CostProfile:
    """Measured seconds over rows, contexts and requests; the file format is described in `schema`.

    Curves are computed on first use and kept; nothing else changes after construction.
    """

    rows: np.ndarray
    """(n,) int64, the first is 1."""
    contexts: np.ndarray
    """(c,) int64 committed context lengths."""
    verify_s: np.ndarray
    """(c, n) float64, one request."""
    draft_s: np.ndarray
    """(c, r) float64, one column per request count."""
    host_s: np.ndarray
    """(n,) float64."""
    requests: np.ndarray
    """(r,) int64, the first is 1."""
    batch: BatchCosts | None = None
    """Verification of several requests at once."""
    spread_s: np.ndarray | None = None
    """(c, n) float64."""
    steps: tuple[int, ...] = ()
    """Rows s where the cost jumps between s and s + 1."""
    mean_gains: np.ndarray | None = None
    """(g,) float64 mean sorted gains."""
    identity: Identity | None = None
    """Where it was measured; None for published tables."""
    dtype: str = ""
    """Precision of the target."""
    source: str = ""
    """Where the numbers come from."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the file, never read."""
    _tables: dict[tuple[str, int, int], np.ndarray] = field(default_factory=dict, init=False, repr=False)
    _outside: set[str] = field(default_factory=set, init=False, repr=False)

    @classmethod
    def from_json(cls, document: object) -> CostProfile:
        """Build from parsed JSON; raises CostError naming the field or cell that is wrong."""
        data = schema.check_schema(document)
        rows = schema.axis(data["rows"], "rows", 1)
        if rows[0] != 1:
            raise CostError(f"rows starts at {rows[0]}: expected 1 first, the cost of plain decoding")
        contexts = schema.axis(data["contexts"], "contexts", 0)
        shape = (len(contexts), len(rows))
        requests = schema.request_counts(data.get("requests", 1))
        host, spread, gains = data.get("host_s"), data.get("spread_s"), data.get("mean_gains")
        identity = data.get("identity")
        return cls(
            rows=rows,
            contexts=contexts,
            verify_s=schema.table(data["verify_s"], shape, "verify_s", above=True),
            draft_s=schema.draft_table(data.get("draft_s"), len(contexts), len(requests)),
            host_s=np.zeros(len(rows)) if host is None else schema.table(host, (len(rows),), "host_s"),
            requests=requests,
            batch=BatchCosts.from_json(data.get("batch"), len(requests) - 1),
            spread_s=None if spread is None else schema.table(spread, shape, "spread_s"),
            steps=schema.step_rows(data.get("steps"), rows),
            mean_gains=None if gains is None else schema.masses(gains, "mean_gains"),
            identity=None if identity is None else Identity.from_json(identity),
            dtype=str(data.get("dtype", "")),
            source=str(data.get("source", "")),
            notes={name: value for name, value in data.items() if name not in schema.FIELDS},
        )

    @property
    def unfit(self) -> str | None:
        """Why these are no facts about the machine, if they were measured beside other work; None if they are."""
        measured = self.notes.get("measured")
        found = measured.get("unfit") if isinstance(measured, Mapping) else None
        return None if found is None else str(found)

    @classmethod
    def load(cls, path: str | Path) -> CostProfile:
        """Read a profile; raises CostError with the file's name first."""
        path = Path(path)
        try:
            return cls.from_json(schema.read_json(path))
        except CostError as error:
            message = str(error)
            raise CostError(message if message.startswith(str(path)) else f"{path}: {message}") from error

    def to_json(self) -> dict[str, Any]:
        """The document that `from_json` reads."""
        return {
            **self.notes,
            "schema": schema.SCHEMA,
            "source": self.source,
            "dtype": self.dtype,
            "requests": self.requests.tolist() if len(self.requests) > 1 else 1,
            "rows": self.rows.tolist(),
            "contexts": self.contexts.tolist(),
            "verify_s": self.verify_s.tolist(),
            "draft_s": self.draft_s.tolist(),
            "host_s": self.host_s.tolist(),
            "batch": None if self.batch is None else self.batch.to_json(),
            "spread_s": None if self.spread_s is None else self.spread_s.tolist(),
            "steps": list(self.steps),
            "mean_gains": None if self.mean_gains is None else self.mean_gains.tolist(),
            "identity": None if self.identity is None else self.identity.to_json(),
        }

    def save(self, path: str | Path) -> None:
        """Write the file in one step: it is never seen half written. Raises CostError on NaN or a bad folder."""
        text = json.dumps(CostProfile.from_json(self.to_json()).to_json(), allow_nan=False, indent=1)
        write_file(path, text + "\n", CostError)

    def check_identity(self, here: Identity, allow_stale: bool = False) -> tuple[str, ...]:
        """Return the fields in which this profile's identity differs from `here`, empty when it is the same.

        Raises CostError naming the first of them unless `allow_stale`.
        """
        if self.identity is None:
            differing: tuple[str, ...] = ("identity None against this machine",)
        else:
            differing = self.identity.differences(here)
        if differing and not allow_stale:
            raise CostError(
                f"profile measured elsewhere: {differing[0]} here; measure again or pass --allow-stale-profile"
            )
        return differing

    def with_draft(self, draft_s: float) -> CostProfile:
        """The same profile with one drafting cost for every context and request count."""
        value = schema.number(draft_s, "draft_s")
        return replace(self, draft_s=np.full_like(self.draft_s, value))

    def nearest_context(self, context: int = CAST_CONTEXT) -> int:
        """The measured context closest to `context`, the shorter of two."""
        return int(self.contexts[np.argmin(np.abs(self.contexts - context))])

    def slope(self, low_row: int, high_row: int, *, context: int = CAST_CONTEXT, requests: int = 1) -> AffineFit:
        """Fit seconds per row of the target forward alone, over grid rows, at the measured context nearest `context`.

        Host time is left out, as in CAST, section 3.3.
        """
        at = self.nearest_context(context)
        verify = self.verify_s[int(np.searchsorted(self.contexts, at))] + self._batch_extra(at, requests)
        return affine(self.rows, verify, low_row, high_row)

    @property
    def outside(self) -> frozenset[str]:
        """The axes ("rows", "context", "requests") along which costs were asked for beyond the grid so far."""
        return frozenset(self._outside)

    def covers_requests(self, requests: int) -> bool:
        """True when rounds of `requests` requests were measured, drafting and verifying, or lie between two that were.

        Otherwise their costs are a guess: a profile of one request prices a round of R as one request with as many
        rows and drafting as one pass for one; beyond the largest R the last segment continues.
        """
        return requests <= 1 or (self.batch is not None and requests <= int(self.requests[-1]))

    def notice_requests(self, requests: int) -> str | None:
        """The line that whoever prices a round of R = `requests` owes the user, the first time R is not covered.

        None when it is covered and ever after. `round_cost`, `target_s` and `draft_cost_s` answer silently.
        """
        if self.covers_requests(requests) or "requests" in self._outside:
            return None
        self._outside.add("requests")
        measured = int(self.requests[-1]) if self.batch is not None else 1
        how = "as those of one with all their rows" if measured == 1 else f"as the costs of up to {measured} go on"
        return (
            f"no measured costs of {requests} requests together: they are taken {how}, and trees may have the wrong "
            "size (see draftwood profile)"
        )

    def target_s(self, rows: int, context: int, *, requests: int = 1, curve: str = "measured") -> float:
        """C_verify + C_host of `rows` total rows, uncorrected."""
        return float(self._at_context(curve, context, requests, rows)[rows])

    def draft_cost_s(self, context: int, requests: int = 1) -> float:
        """C_draft of one pass for `requests` requests; linear between, the last segment continues, never negative.

        Of a profile of one request that of one, whatever R: ask `notice_requests`.
        """
        low, weight = bracket(self.contexts, context)
        column = self.draft_s[low]
        if weight:
            column = column + weight * (self.draft_s[low + 1] - column)
        if len(column) == 1:
            return max(float(column[0]), 0.0)
        left, share = bracket(self.requests, requests)
        return max(float(column[left] + share * (column[min(left + 1, len(column) - 1)] - column[left])), 0.0)

    def round_cost(
        self,
        base_rows: int,
        context: int,
        *,
        requests: int = 1,
        max_nodes: int = 64,
        curve: str = "measured",
        live: LiveFactors = UNCORRECTED,
    ) -> RoundCosts:
        """Return the costs of a round that carries `base_rows` rows anyway and 0..max_nodes drafted nodes.

        `base_rows` counts roots, prefill chunks and fixed trees; `context` is L (of several requests: their mean);
        `requests` is R, see `notice_requests` for counts that were not measured.
        Entry n of `round_s` is C_draft(L, R) + C_host(base_rows + n) + C_verify(base_rows + n; L, R). With `live`
        factors the seconds are those divided by the base factor: (draft / base) C_draft + C(1) + (slope / base)
        (C(M) - C(1)). Warns once per axis when the grid is left.
        """
        last = base_rows + max_nodes
        target = self._at_context(curve, context, requests, last)
        draft = self.draft_cost_s(context, requests) * live.relative_draft
        tilt = live.relative_slope
        if tilt != 1.0:
            target = target[1] + tilt * (target - target[1])
        return RoundCosts(float(target[base_rows]), draft, target[base_rows:] + draft)

    def _at_context(self, curve: str, context: int, requests: int, num_rows: int) -> np.ndarray:
        """(num_rows + 1,) target seconds by rows at any context."""
        if num_rows > self.rows[-1]:
            self._left_grid("rows", num_rows, int(self.rows[-1]))
        if context > self.contexts[-1] and len(self.contexts) > 1:
            self._left_grid("context", context, int(self.contexts[-1]))
        low, weight = bracket(self.contexts, context)
        used = num_rows + 1
        if curve == "convex" and not 0.0 <= weight <= 1.0:
            # Continuing two convex curves need not give a convex one: continue the points, then fit.
            grain = max(round(context / _CONVEX_CONTEXT_GRAIN), 0) * _CONVEX_CONTEXT_GRAIN
            return self._table(curve, grain, requests, num_rows)[:used]
        left = self._table(curve, int(self.contexts[low]), requests, num_rows)[:used]
        if not weight:
            return left
        right = self._table(curve, int(self.contexts[low + 1]), requests, num_rows)[:used]
        mixed: np.ndarray = left + weight * (right - left)
        return mixed if 0.0 <= weight <= 1.0 else np.maximum(mixed, self.verify_s.min())

    def _table(self, curve: str, context: int, requests: int, num_rows: int) -> np.ndarray:
        """(>= num_rows + 1,) seconds of one context, kept for the next call."""
        key = (curve, context, requests)
        found = self._tables.get(key)
        if found is None or len(found) <= num_rows:
            if curve not in CURVES:
                raise CostError(f"curve {curve!r}: expected one of {', '.join(CURVES)}")
            low, weight = bracket(self.contexts, context)
            seconds = self.verify_s[low]
            spread = None if self.spread_s is None else self.spread_s[low]
            if weight:
                seconds = seconds + weight * (self.verify_s[low + 1] - seconds)
            seconds = np.maximum(seconds + self._batch_extra(context, requests), self.verify_s.min()) + self.host_s
            size = max(num_rows, int(self.rows[-1]), 2 * len(found) if found is not None else 0)
            found = CURVES[curve](self.rows, seconds, spread, self.steps).table(size)
            found.setflags(write=False)
            self._tables[key] = found
        return found

    def _batch_extra(self, context: int, requests: int) -> np.ndarray:
        """(n,) seconds that `requests` requests take beyond one at the same total rows; 0 when not measured."""
        if self.batch is None or requests <= 1:
            return np.zeros(len(self.rows))
        single = np.array([[self._single_s(int(at), rows) for rows in self.batch.rows] for at in self.batch.contexts])
        return self.batch.extra_s(single, self.requests, context, requests, self.rows)

    def _single_s(self, context: int, rows: int) -> float:
        low, weight = bracket(self.contexts, context)
        value = float(np.interp(rows, self.rows, self.verify_s[low]))
        if weight:
            value += weight * (float(np.interp(rows, self.rows, self.verify_s[low + 1])) - value)
        return value

    def _left_grid(self, name: str, value: int, last: int) -> None:
        if name not in self._outside:
            self._outside.add(name)
            warnings.warn(
                f"{name} beyond the measured {last}: the last segment of the cost curve is continued",
                CostWarning,
                stacklevel=4,
            )
