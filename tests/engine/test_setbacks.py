"""Rounds that were set back leave no trace in what is learned from seconds; the clock is planted."""

from __future__ import annotations

from functools import partial

import pytest
from clocked import Clock, ClockedDrafter, ClockedTarget
from stepping import submit
from summing import SummingDrafter, SummingTarget, text_of
from tiny_bench import profile

from draftwood.batch import Batch
from draftwood.engine import Engine, SamplingParams
from draftwood.engine.step import timed
from draftwood.policy import make_policy

PROMPT = [5, 6, 7]
COSTS = profile()
STALL_S = 1.0


class Planted:
    """An engine whose rounds take what the profile says; forwards of some numbers are spoilt, some stall."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, spoilt: set[int], stalled: set[int]) -> None:
        self.spoilt, self.stalled = spoilt, stalled
        self.seconds: list[float] = []
        self.rows: list[int] = []
        clock = Clock(tick=1e-9)
        monkeypatch.setattr("draftwood.engine.loop.perf_counter", clock)
        monkeypatch.setattr("draftwood.engine.loop.timed", partial(timed, clock=clock))
        inner = SummingTarget(fault=lambda rows: [0] if len(self.seconds) in spoilt else [])
        drafter = ClockedDrafter(
            SummingDrafter(), clock, lambda asked: COSTS.draft_cost_s(asked[0].context_len, len(asked))
        )
        target = ClockedTarget(inner, clock, self.cost)
        self.engine = Engine(target, drafter, profile=COSTS)  # type: ignore[arg-type]

    def cost(self, batch: Batch) -> float:
        number = len(self.seconds) + 1
        context = int(batch.prefix_len[0])
        seconds = COSTS.target_s(batch.num_rows, context, requests=1) + number * 1e-6
        self.seconds.append(seconds + STALL_S * (number in self.stalled))
        self.rows.append(batch.num_rows)
        return self.seconds[-1]

    def decode(self, tokens: int = 40) -> list[dict[str, float]]:
        """Seconds of the records of one request."""
        policy = make_policy("ddtree", budget=6)
        request = submit(self.engine, PROMPT, policy, SamplingParams(tokens, end_ids=frozenset()))
        while self.engine.loop.step():
            self.engine.check_integrity()
        assert request.token_ids == text_of(PROMPT, tokens)
        return [record.seconds for record in request.rounds]


@pytest.mark.parametrize("spoilt", [{2}, {3, 6}, {4, 6, 8}])
def test_records_keep_the_seconds_of_their_own_step(spoilt: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    planted = Planted(monkeypatch, spoilt, spoilt)
    with planted.engine.loop.watching(lambda stages: stages, timing=True):
        records = planted.decode()
    kept = [seconds for number, seconds in enumerate(planted.seconds, start=1) if number != 1 and number not in spoilt]
    assert [seconds["verify"] for seconds in records] == pytest.approx(kept, abs=1e-7)
    assert max(seconds["verify"] for seconds in records) < STALL_S


def test_the_live_correction_learns_nothing_from_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stall in rounds that were set back moves nothing; the same stall in rounds that count does."""
    numbers = {3, 6, 9}
    for spoilt, moved in ((numbers, False), (set[int](), True)):
        planted = Planted(monkeypatch, spoilt, numbers)
        planted.decode(60)
        costs = planted.engine.costs
        assert costs is not None and all(planted.rows[number - 1] > 1 for number in numbers)
        assert (costs.factors.base == pytest.approx(1.0, abs=2e-3)) != moved
        assert (costs.factors.slope == pytest.approx(1.0, abs=2e-3)) != moved
        assert costs.factors.draft == pytest.approx(1.0, abs=1e-3)
