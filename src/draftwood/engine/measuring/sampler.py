"""The order of measuring: every cell once, then repeats in random order, then gaps that may hide a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ...cost.steps import Curve, rows_to_add
from ...errors import CostError
from .plan import Plan
from .stand import Cell, Sample

_REFERENCES = 16
_LEAST_INTERVAL = 8
_MORE_REPEATS = 3  # of cells whose repeats differ by much
_ESSENTIAL = 2  # cells that are measured whatever the budget: the two ends of the grid
_SIGMA = 0.68

Report = Callable[[int, int, float | None], None]
"""Receives rounds done, rounds planned, and the seconds that are left (None: not known yet)."""


class Runner(Protocol):
    """What measures one round."""

    def run(self, cell: Cell) -> Sample:
        """Measure a round of this kind."""


@dataclass(slots=True)
class Log:
    """Everything measured so far. Mutable."""

    samples: dict[Cell, list[Sample]] = field(default_factory=dict)
    reference_s: list[float] = field(default_factory=list)
    """The reference round, over the whole run."""
    elapsed_s: float = 0.0
    """Seconds of measuring, earlier sessions included."""

    def count(self, cell: Cell) -> int:
        """Samples of a cell."""
        return len(self.samples.get(cell, ()))

    def verify(self, cell: Cell) -> np.ndarray:
        """(k,) seconds of the target forward."""
        return np.array([sample.verify_s for sample in self.samples.get(cell, ())])

    def curve(self, contexts: Sequence[int]) -> Curve:
        """Medians and spreads of lone requests over rows, both the mean over `contexts`: steps hold at all."""
        rows = [row for row, at in self._single() if at == contexts[0]]
        full = [row for row in rows if all(self.count(Cell(row, at)) for at in contexts)]
        parts = {row: [self.verify(Cell(row, at)) for at in contexts] for row in full}
        noise = 1.0 / math.sqrt(len(contexts))
        return Curve(
            {row: float(np.mean([np.median(part) for part in found])) for row, found in parts.items()},
            {row: noise * float(np.mean([spread(part) for part in found])) for row, found in parts.items()},
        )

    def _single(self) -> list[tuple[int, int]]:
        """Rows and context of every cell of a lone request."""
        return [(cell.rows, cell.context) for cell in self.samples if cell.requests == 1]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        cells = [
            {"rows": cell.rows, "context": cell.context, "requests": cell.requests, "samples": [list(s) for s in found]}
            for cell, found in self.samples.items()
        ]
        return {"cells": cells, "reference_s": self.reference_s, "elapsed_s": self.elapsed_s}

    @classmethod
    def from_json(cls, value: Any) -> Log:
        """Read `to_json`; raises CostError for anything else."""
        try:
            samples = {
                Cell(int(item["rows"]), int(item["context"]), int(item["requests"])): [
                    Sample(float(v), None if d is None else float(d), float(h)) for v, d, h in item["samples"]
                ]
                for item in value["cells"]
            }
            return cls(samples, [float(seconds) for seconds in value["reference_s"]], float(value["elapsed_s"]))
        except (KeyError, TypeError, ValueError) as error:
            raise CostError(
                f"measured cells cannot be read ({type(error).__name__}): expected a partial file"
            ) from error


def spread(seconds: np.ndarray) -> float:
    """Half the width of the middle 68 %, a standard deviation if the noise is normal; 0 for a single value."""
    low, high = np.quantile(seconds, [0.5 - _SIGMA / 2, 0.5 + _SIGMA / 2])
    return float(high - low) / 2


class Sampler:
    """Fills a log by a plan, within a time budget."""

    def __init__(
        self,
        runner: Runner,
        plan: Plan,
        log: Log,
        *,
        clock: Callable[[], float],
        budget_s: float | None = None,
        seed: int = 0,
        report: Report = lambda done, total, left_s: None,
        keep: Callable[[Log], None] = lambda log: None,
    ) -> None:
        """`keep` is called after every sweep and before an interrupt leaves, to store the log."""
        self._runner, self._plan, self._log = runner, plan, log
        self._clock, self._budget_s = clock, budget_s
        self._rng = np.random.default_rng(seed)
        self._report, self._keep = report, keep
        self._start_s = clock()
        self._resumed_s = log.elapsed_s
        self._rounds = 0
        self._slowest_s = 0.0
        self._wanted: dict[Cell, int] = {}

    def run(self) -> bool:
        """Measure; returns False when the budget ended first. Mutates the log."""
        try:
            finished = self._all()
        finally:
            self._log.elapsed_s = self._resumed_s + self._clock() - self._start_s
            self._keep(self._log)
        return finished

    def _all(self) -> bool:
        plan = self._plan
        cells = plan.cells()
        self._wanted = dict.fromkeys(cells, plan.repeats)
        if not self._sweeps(cells):
            return False
        while plan.bisect and (rows := rows_to_add(plan.rows, self._log.curve(plan.contexts))):
            fresh = [Cell(row, context) for row in rows for context in plan.contexts]
            self._wanted |= dict.fromkeys(fresh, plan.repeats)
            if not self._sweeps(fresh):
                return False
        return self._again(cells)

    def _again(self, cells: list[Cell]) -> bool:
        """Repeat the cells that are in doubt, a few times over; what helps against a disturbance of a moment."""
        for _ in range(_MORE_REPEATS):
            doubtful = [cell for cell in cells if is_wild(self._log.verify(cell))]
            for cell in doubtful:
                if not self._affordable():
                    return True
                self._log.samples[cell].append(self._measure(cell))
        return True

    def _sweeps(self, cells: list[Cell]) -> bool:
        """Once in the given order, then in random order until each cell has its repeats."""
        for repeat in range(1, self._plan.repeats + 1):
            order = cells if repeat == 1 else [cells[at] for at in self._rng.permutation(len(cells))]
            for cell in order:
                if self._log.count(cell) < repeat:
                    if not self._affordable():
                        return False
                    self._log.samples.setdefault(cell, []).append(self._measure(cell))
            self._log.elapsed_s = self._resumed_s + self._clock() - self._start_s
            self._keep(self._log)
        return True

    def _measure(self, cell: Cell) -> Sample:
        if self._rounds % self._interval() == 0:
            self._log.reference_s.append(self._run(self._plan.reference).verify_s)
        self._rounds += 1
        sample = self._run(cell)
        left = self._left()
        self._report(sum(self._wanted.values()) - left, sum(self._wanted.values()), self._left_s(left))
        return sample

    def _run(self, cell: Cell) -> Sample:
        start_s = self._clock()
        sample = self._runner.run(cell)
        self._slowest_s = max(self._slowest_s, self._clock() - start_s)
        return sample

    def _interval(self) -> int:
        return max(_LEAST_INTERVAL, sum(self._wanted.values()) // _REFERENCES)

    def _left(self) -> int:
        return sum(max(0, wanted - self._log.count(cell)) for cell, wanted in self._wanted.items()) - 1

    def _left_s(self, left: int) -> float | None:
        """At the mean pace so far, never more than the budget has left."""
        elapsed_s = self._clock() - self._start_s
        by_pace = left * elapsed_s / self._rounds
        return by_pace if self._budget_s is None else max(0.0, min(by_pace, self._budget_s - elapsed_s))

    def _affordable(self) -> bool:
        """Whether another round fits, were it the slowest so far."""
        if self._budget_s is None or self._rounds < _ESSENTIAL:
            return True
        return self._clock() - self._start_s + self._slowest_s <= self._budget_s


def is_wild(seconds: Sequence[float] | np.ndarray) -> bool:
    """Whether repeats of one cell differ by more than half: no machine at rest does that."""
    return len(seconds) >= 2 and bool(max(seconds) > 1.5 * min(seconds))


def unfit(log: Log, cells: Iterable[Cell]) -> str | None:
    """Why these numbers are no facts about the machine: its costs changed by half meanwhile; None if they are.

    A reference round that drifts, or repeats that differ, by so much come from other work on the machine.
    """
    reference = log.reference_s
    half = len(reference) // 2
    if half >= 2 and is_wild([float(np.median(reference[:half])), float(np.median(reference[-half:]))]):
        return "its reference round changed by more than half"
    repeated = [log.verify(cell) for cell in cells if log.count(cell) >= 2]
    wild = sum(is_wild(seconds) for seconds in repeated)
    return (
        f"repeats of {wild} of {len(repeated)} cells differ by more than half" if wild > 0.25 * len(repeated) else None
    )


def disturbances(log: Log, cells: Iterable[Cell]) -> tuple[str, ...]:
    """What a reader of these numbers should know about the run: a drift of the reference round, or noisy cells."""
    found = []
    reference = log.reference_s
    if len(reference) >= 4:
        half = len(reference) // 2
        early, late = float(np.median(reference[:half])), float(np.median(reference[-half:]))
        if abs(late / early - 1.0) > 0.08:
            found.append(f"the reference round took {early * 1e3:.1f} ms at first and {late * 1e3:.1f} ms at the end")
    measured = [log.verify(cell) for cell in cells if log.count(cell) >= 3]
    noisy = [seconds for seconds in measured if spread(seconds) > 0.1 * float(np.median(seconds))]
    if len(noisy) > 0.25 * len(measured):
        found.append(f"{len(noisy)} of {len(measured)} cells spread by more than 10 %")
    return tuple(found)
