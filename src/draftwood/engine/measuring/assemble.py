"""From a log of measured rounds to a cost profile."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ... import __version__
from ...cost.identity import Identity
from ...cost.profile import CostProfile
from ...cost.steps import pinned_steps
from ...cost.tables import BatchCosts
from ...errors import CostError
from .plan import Plan
from .sampler import Log, disturbances, spread, unfit
from .stand import Cell, Sample


def assemble(
    log: Log, plan: Plan, *, mean_gains: np.ndarray | None, identity: Identity | None, dtype: str
) -> CostProfile:
    """Build the profile of everything that was measured completely.

    Rows are those of the shortest context, contexts those with all of them; a row that was added for a step must be
    there at every context. Raises CostError when time ran out before there was a curve at all.
    """
    base = [row for row in plan.rows if log.count(Cell(row, plan.contexts[0]))]
    if len(base) < 2:
        raise CostError(f"time ran out after {len(base)} measured rows: expected at least 2, give more seconds")
    contexts = [at for at in plan.contexts if all(log.count(Cell(row, at)) for row in base)]
    added = {cell.rows for cell in log.samples if cell.requests == 1} - set(plan.rows)
    rows = sorted([*base, *(row for row in added if all(log.count(Cell(row, at)) for at in contexts))])
    cells = [[Cell(row, at) for row in rows] for at in contexts]
    batch = _batch(log, plan, contexts)
    counts = [1, *(batch.counts if batch is not None else ())]
    flat = [cell for line in cells for cell in line]
    measured = [*flat, *(batch.cells if batch is not None else ())]
    return CostProfile(
        rows=np.array(rows, np.int64),
        contexts=np.array(contexts, np.int64),
        verify_s=np.array([[np.median(log.verify(cell)) for cell in line] for line in cells]),
        draft_s=_draft_s(log, contexts, counts, plan.batch_contexts),
        host_s=np.array([_median(s.host_s for at in contexts for s in log.samples[Cell(row, at)]) for row in rows]),
        requests=np.array(counts, np.int64),
        batch=batch.costs if batch is not None else None,
        spread_s=np.array([[spread(log.verify(cell)) for cell in line] for line in cells]),
        steps=pinned_steps(base, log.curve(contexts)),
        mean_gains=mean_gains,
        identity=identity,
        dtype=dtype,
        source=f"measured by draftwood {__version__}",
        notes={
            "measured": {
                "seconds": log.elapsed_s,
                "least_repeats": min(log.count(cell) for cell in flat),
                "planned_repeats": plan.repeats,
                "disturbed": list(disturbances(log, measured)),
                "unfit": unfit(log, measured),
            }
        },
    )


class _Batch:
    """The request counts that were measured completely."""

    def __init__(self, log: Log, plan: Plan, counts: list[int]) -> None:
        self.counts = counts
        self.cells = [Cell(row, at, count) for count in counts for at in plan.batch_contexts for row in plan.batch_rows]
        seconds = [float(np.median(log.verify(cell))) for cell in self.cells]
        shape = (len(counts), len(plan.batch_contexts), len(plan.batch_rows))
        self.costs = BatchCosts(
            np.array(plan.batch_contexts, np.int64),
            np.array(plan.batch_rows, np.int64),
            np.array(seconds).reshape(shape),
        )


def _batch(log: Log, plan: Plan, contexts: list[int]) -> _Batch | None:
    """None when no request count is complete."""
    if not set(plan.batch_contexts) <= set(contexts):
        return None
    counts = [
        count
        for count in plan.requests[1:]
        if all(log.count(Cell(row, at, count)) for at in plan.batch_contexts for row in plan.batch_rows)
    ]
    return _Batch(log, plan, counts) if counts else None


def _draft_s(log: Log, contexts: list[int], counts: list[int], batch_contexts: tuple[int, ...]) -> np.ndarray:
    """(c, r) seconds of a drafter pass.

    Several requests were measured at some contexts only; what they take beyond one is carried to the others, linear
    between and constant outside.
    """
    single = np.array([_median(_drafts(log, at, 1)) for at in contexts])
    columns = [single]
    for count in counts[1:]:
        extra = [_median(_drafts(log, at, count)) - single[contexts.index(at)] for at in batch_contexts]
        columns.append(np.maximum(single + np.interp(contexts, batch_contexts, extra), 0.0))
    return np.stack(columns, axis=1)


def _drafts(log: Log, context: int, requests: int) -> list[float]:
    found: list[Sample] = []
    for cell, samples in log.samples.items():
        if (cell.context, cell.requests) == (context, requests):
            found += samples
    return [sample.draft_s for sample in found if sample.draft_s is not None]


def _median(seconds: Iterable[float]) -> float:
    return float(np.median(list(seconds)))
