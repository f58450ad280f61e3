"""Measuring: what is run, in which order, what is kept, and what comes out; costs are planted through a fake clock."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from clocked import Clock, Pair, clocked_pair, draft_cost, toy_codec, verify_cost
from stepping import submit

from draftwood.core import Visibility
from draftwood.cost import CostProfile, Identity
from draftwood.cost.steps import Curve, pinned_steps, rows_to_add
from draftwood.engine import Engine, SamplingParams
from draftwood.engine.measuring.assemble import assemble
from draftwood.engine.measuring.gains import bundled_prompts, mean_sorted
from draftwood.engine.measuring.plan import (
    Plan,
    coarse_first,
    fitting_contexts,
    full_plan,
    grid_rows,
    probe_plan,
    quick_plan,
)
from draftwood.engine.measuring.profile import MeasureOptions, load_partial, measure_profile
from draftwood.engine.measuring.sampler import Log, Sampler, disturbances, spread, unfit
from draftwood.engine.measuring.stand import Cell, Sample, Stand, drift
from draftwood.errors import CostError, UsageError
from draftwood.policy import make_policy

HERE = Identity("cpu", 1, "float32", "sdpa", "m", "d", {"torch": "1"})


@dataclass
class FakeRunner:
    """Rounds that take what `cost` says; the clock moves with them."""

    cost: Callable[[Cell, int], float]
    clock: Clock = field(default_factory=Clock)
    ran: list[Cell] = field(default_factory=list)
    stop_after: int | None = None

    def run(self, cell: Cell) -> Sample:
        if self.stop_after == len(self.ran):
            raise KeyboardInterrupt
        seconds = self.cost(cell, len(self.ran))
        self.ran.append(cell)
        drafted = cell.rows > cell.requests
        self.clock.now += seconds + 0.002 + (0.005 if drafted else 0.0)
        return Sample(seconds, 0.005 if drafted else None, 0.002)


def straight(cell: Cell, number: int = 0) -> float:
    return 0.010 + 0.0005 * cell.rows + 1e-5 * cell.context + 0.001 * (cell.requests - 1)


def sampled(runner: FakeRunner, plan: Plan, log: Log | None = None, budget_s: float | None = None) -> Log:
    log = log or Log()
    Sampler(runner, plan, log, clock=runner.clock, budget_s=budget_s).run()
    return log


def without_reference(ran: list[Cell], plan: Plan, log: Log) -> list[Cell]:
    """What was run apart from the extra runs of the reference cell, which come first in every stretch."""
    rest = list(ran)
    interval = max(8, len(plan.cells()) * plan.repeats // 16)
    for at in range(0, len(rest), interval):
        assert rest.pop(at) == plan.reference
    return rest


class TestPlan:
    def test_grid_ends_with_the_largest_tree(self) -> None:
        assert grid_rows(64) == (1, 2, 4, 8, 9, 16, 17, 32, 33, 48, 64, 65)
        assert grid_rows(512)[-4:] == (257, 384, 512, 513)
        assert grid_rows(1) == (1, 2)
        assert grid_rows(20) == (1, 2, 4, 8, 9, 16, 17, 21)
        assert probe_plan(64, (256,)).rows == (1, 8, 9, 16, 17, 32, 33, 64, 65)

    def test_a_beginning_spans_the_grid(self) -> None:
        assert coarse_first([1, 2, 4, 8, 9]) == [1, 9, 4, 2, 8]
        assert coarse_first([1]) == [1]
        for count in range(1, 30):
            assert sorted(coarse_first(range(count))) == list(range(count))

    def test_batch_cells_are_two_rows_and_two_contexts(self) -> None:
        plan = full_plan(64, (128, 512, 1024, 2048))
        assert (plan.requests, plan.batch_rows, plan.batch_contexts) == ((1, 2, 4, 8), (16, 64), (128, 512))
        assert full_plan(512, (128,)).batch_rows == (16, 256)
        assert quick_plan(64, (128, 512)).batch_contexts == (128,)
        assert full_plan(4, (128,)).requests == (1,), "no two sizes to measure"
        assert len(plan.cells()) == 12 * 4 + 3 * 2 * 2

    def test_contexts_that_fit(self) -> None:
        assert fitting_contexts(None, (128, 512, 1024), 8192, 16) == (128, 512, 1024)
        assert fitting_contexts(None, (128, 512, 1024), 600, 16) == (128,)
        (only,) = fitting_contexts(None, (128, 512), 100, 8)
        assert only + drift(only) + 16 <= 100 < only + 1 + drift(only + 1) + 16
        assert fitting_contexts((64, 32, 64), (), 200, 8) == (32, 64)
        with pytest.raises(UsageError, match="context 9000: expected 1 to "):
            fitting_contexts((64, 9000), (), 8192, 16)
        with pytest.raises(UsageError, match="context limit 20"):
            fitting_contexts(None, (128,), 20, 16)

    @pytest.mark.parametrize(("nodes", "seconds"), [(0, None), (1025, None), (4, 0.0), (4, float("nan"))])
    def test_options_out_of_range(self, nodes: int, seconds: float | None) -> None:
        with pytest.raises(UsageError, match=r"max_nodes|max_seconds"):
            MeasureOptions(max_nodes=nodes, max_seconds=seconds)


class TestStand:
    @pytest.fixture
    def pair(self, tmp_path: Path) -> Pair:
        return clocked_pair(tmp_path)

    @pytest.fixture
    def stand(self, pair: Pair) -> Stand:
        return Stand(pair.engine.state, max_nodes=64, clock=pair.clock)

    def test_a_round_is_a_real_tree_on_a_real_context(self, pair: Pair, stand: Stand) -> None:
        stand.run(Cell(33, 40))
        batch = pair.target.batches[-1]
        assert len(batch.token_ids) == batch.num_rows == len(batch.logit_rows) == len(batch.tap_rows) == 33
        assert abs(int(batch.prefix_len[0]) - 40) <= drift(40)
        visible = batch.own_visible(0)
        assert batch.visibility == (Visibility.ANCESTORS,) and visible is not None
        causal = np.tril(np.ones((33, 33), bool))
        assert 2 * 33 - 1 < visible.sum() < causal.sum(), "neither a star nor a chain"
        assert pair.drafter.committed[-1][1] >= 1, "the drafter got taps of the round"

    def test_parts_add_up(self, stand: Stand, pair: Pair) -> None:
        sample = stand.run(Cell(9, 40))
        assert sample == pytest.approx((0.010 + 0.0005 * 9, 0.004, 0.0))
        pair.clock.tick = 0.001
        # Readings: start, two around the draft, two around the forward, end.
        assert stand.run(Cell(9, 40)) == pytest.approx((0.0155, 0.005, 0.003))

    def test_a_plain_round_drafts_nothing_and_keeps_its_taps(self, pair: Pair, stand: Stand) -> None:
        stand.run(Cell(9, 40))
        asked, committed = len(pair.drafter.asked), len(pair.drafter.committed)
        sample = stand.run(Cell(1, 40))
        assert sample.draft_s is None and sample.verify_s == pytest.approx(0.0105)
        assert len(pair.drafter.asked) == asked
        assert pair.drafter.committed[committed:] == [(-1, 1)]

    def test_several_requests_share_the_rows(self, pair: Pair, stand: Stand) -> None:
        sample = stand.run(Cell(14, 30, 4))
        batch = pair.target.batches[-1]
        assert np.diff(batch.offsets).tolist() == [4, 4, 3, 3]
        assert len(set(batch.requests)) == 4
        assert sample == pytest.approx((0.010 + 0.007 + 0.003, 0.007, 0.0))
        assert (abs(batch.prefix_len - 30) <= drift(30)).all()

    def test_contexts_stay_near_their_length(self, pair: Pair, stand: Stand) -> None:
        for _ in range(40):
            stand.run(Cell(17, 48))
            (length,) = pair.target.batches[-1].prefix_len
            assert abs(length - 48) <= drift(48)
        assert len({request for batch in pair.target.batches for request in batch.requests}) > 1

    def test_close_gives_everything_back(self, pair: Pair, stand: Stand) -> None:
        stand.run(Cell(9, 40, 2))
        stand.run(Cell(9, 60))
        stand.close()
        assert stand._state.pool.requests == ()
        assert pair.drafter.inner.pool.requests == ()
        stand._state.pool.check_integrity()

    def test_trees_are_no_larger_than_scores_allow(self, stand: Stand, pair: Pair) -> None:
        assert stand.widest_tree(40) == 64
        stand.close()
        small = Stand(pair.engine.state, max_nodes=5, clock=pair.clock)
        assert small.widest_tree(40) == 5

    def test_a_request_in_flight_is_not_disturbed(self, pair: Pair) -> None:
        def text(measuring: bool) -> list[int]:
            options = SamplingParams(20, end_ids=frozenset())
            request = submit(pair.engine, [1, 2, 3, 4], make_policy("ddtree", budget=5), options)
            for number in range(60):
                if measuring and number == 3:
                    pair.engine.ensure_costs()
                pair.engine.loop.step()
            assert request.finished
            return request.token_ids

        assert text(False) == text(True)


class TestSampler:
    PLAN = Plan((1, 8, 9, 64), (100, 300), 3, (1, 2), (9,), (100,), bisect=False)

    def test_every_cell_once_then_in_random_order(self) -> None:
        runner = FakeRunner(straight)
        log = sampled(runner, self.PLAN)
        ran = without_reference(runner.ran, self.PLAN, log)
        cells = self.PLAN.cells()
        assert ran[:9] == cells
        assert ran[:4] == [Cell(1, 100), Cell(64, 100), Cell(8, 100), Cell(9, 100)]
        assert sorted(ran[9:18]) == sorted(ran[18:]) == sorted(cells)
        assert ran[9:18] != cells and ran[9:18] != ran[18:]
        assert all(log.count(cell) == 3 for cell in cells)

    def test_the_budget_is_kept(self) -> None:
        runner = FakeRunner(lambda cell, number: 0.1)
        log = Log()
        sampler = Sampler(runner, self.PLAN, log, clock=runner.clock, budget_s=1.0)
        assert sampler.run() is False
        assert 0.8 < runner.clock.now <= 1.0
        assert log.elapsed_s == runner.clock.now

    def test_the_two_ends_are_measured_whatever_the_budget(self) -> None:
        runner = FakeRunner(lambda cell, number: 50.0)
        log = sampled(runner, self.PLAN, budget_s=1.0)
        assert set(log.samples) == {Cell(1, 100), Cell(64, 100)}

    def test_progress_counts_down(self) -> None:
        runner, seen = FakeRunner(straight), []
        Sampler(
            runner, self.PLAN, Log(), clock=runner.clock, report=lambda done, total, left_s: seen.append((done, total))
        ).run()
        # A round is reported before it is stored.
        assert [total for _, total in seen] == [27] * 27
        assert [done for done, _ in seen] == list(range(1, 28))

    def test_time_left_follows_pace_and_budget(self) -> None:
        for budget_s, bound in ((None, 3.0), (1.0, 1.0)):
            runner, left = FakeRunner(lambda cell, number: 0.1), []
            Sampler(
                runner,
                self.PLAN,
                Log(),
                clock=runner.clock,
                budget_s=budget_s,
                report=lambda done, total, left_s, left=left: left.append(left_s),  # type: ignore[misc]
            ).run()
            assert 0.6 * bound < left[0] <= 2 * bound and left[-1] == pytest.approx(0.0, abs=0.15)

    def test_an_interrupt_keeps_what_was_measured(self) -> None:
        kept: list[Log] = []
        runner = FakeRunner(straight, stop_after=14)
        log = Log()
        with pytest.raises(KeyboardInterrupt):
            Sampler(runner, self.PLAN, log, clock=runner.clock, keep=kept.append).run()
        assert kept[-1] is log
        again = Log.from_json(json.loads(json.dumps(log.to_json())))
        assert again == log and sum(len(found) for found in again.samples.values()) == 12
        second = FakeRunner(straight)
        sampled(second, self.PLAN, again)
        assert all(again.count(cell) == 3 for cell in self.PLAN.cells())
        assert len(second.ran) - (len(again.reference_s) - len(log.reference_s)) == 27 - 12

    @pytest.mark.parametrize("value", [None, [], {"cells": [{}]}, {"cells": [], "reference_s": [], "elapsed_s": "x"}])
    def test_a_log_that_is_none(self, value: object) -> None:
        with pytest.raises(CostError, match="expected a partial file"):
            Log.from_json(value)


class TestSteps:
    PLAN = Plan(grid_rows(64), (100, 300), 3)

    def profile(self, cost: Callable[[Cell, int], float]) -> CostProfile:
        runner = FakeRunner(cost)
        log = sampled(runner, self.PLAN)
        return assemble(log, self.PLAN, mean_gains=None, identity=None, dtype="float32")

    @pytest.mark.parametrize("edge", [10, 13, 24, 40, 41, 50, 62])
    def test_a_planted_jump_is_pinned(self, edge: int) -> None:
        def cost(cell: Cell, number: int) -> float:
            return straight(cell) * 0.2 + 0.010 * (cell.rows > edge)

        profile = self.profile(cost)
        assert profile.steps == (edge,)
        assert {edge, edge + 1} <= set(profile.rows.tolist())
        for context in (100, 300):
            costs = profile.round_cost(1, context, max_nodes=64)
            # Between grid rows the curve is straight, and so is the planted one on either side of the edge.
            for rows in range(1, 66):
                found = costs.round_s[rows - 1] - costs.draft_s - 0.002
                assert found == pytest.approx(cost(Cell(rows, context), 0), rel=1e-9)

    def test_a_jump_on_the_grid_needs_no_search(self) -> None:
        profile = self.profile(lambda cell, number: 0.010 + 0.010 * (cell.rows > 16))
        assert profile.steps == (16,) and profile.rows.tolist() == list(grid_rows(64))

    def test_a_slope_is_no_step(self) -> None:
        profile = self.profile(straight)
        assert profile.steps == ()
        assert len(profile.rows) <= 12 + 6, "each gap is halved once at most"

    def test_noise_is_no_step(self) -> None:
        rng = np.random.default_rng(0)
        noisy = self.profile(lambda cell, number: 0.010 * (1.0 + 0.02 * rng.standard_normal()))
        assert noisy.steps == ()

    def test_two_jumps_in_different_gaps(self) -> None:
        profile = self.profile(lambda cell, number: 0.01 * (1 + (cell.rows > 20) + (cell.rows > 56)))
        assert profile.steps == (20, 56)

    def test_the_spread_hides_a_small_rise(self) -> None:
        seconds = {1: 1.0, 8: 1.1}
        assert rows_to_add((1, 8), Curve(seconds, {1: 0.01, 8: 0.01})) == [4]
        assert rows_to_add((1, 8), Curve(seconds, {1: 0.01, 8: 0.05})) == []
        assert rows_to_add((1, 8), Curve({1: 1.0, 8: 1.039}, {1: 0.0, 8: 0.0})) == []
        assert pinned_steps((1, 8), Curve(seconds, {1: 0.01, 8: 0.01})) == ()


class TestDisturbed:
    PLAN = Plan((1, 8, 9, 64), (100,), 7, bisect=False)

    def found(self, cost: Callable[[Cell, int], float]) -> tuple[str, ...]:
        log = sampled(FakeRunner(cost), self.PLAN)
        return disturbances(log, self.PLAN.cells())

    def test_a_quiet_run(self) -> None:
        assert self.found(straight) == ()

    def test_a_drift_is_said(self) -> None:
        said = self.found(lambda cell, number: straight(cell) * (1.3 if number > 20 else 1.0))
        assert "the reference round took 15.0 ms at first and " in said[0]

    def test_noise_is_said(self) -> None:
        rng = np.random.default_rng(0)
        said = self.found(lambda cell, number: straight(cell) * float(rng.uniform(0.7, 1.3)))
        assert re.match(r"[234] of 4 cells spread by more than 10 %", said[-1])

    def test_it_is_stored(self) -> None:
        log = sampled(FakeRunner(lambda cell, number: straight(cell) * (1.3 if number > 24 else 1.0)), self.PLAN)
        profile = assemble(log, self.PLAN, mean_gains=None, identity=HERE, dtype="float32")
        again = CostProfile.from_json(json.loads(json.dumps(profile.to_json())))
        assert again.notes["measured"]["disturbed"] == list(disturbances(log, self.PLAN.cells())) != []
        assert again.notes["measured"]["seconds"] == pytest.approx(log.elapsed_s)

    def test_what_differs_by_half_is_no_fact(self) -> None:
        plan = Plan((1, 8, 9, 64), (100,), 2, bisect=False)

        def judged(cost: Callable[[Cell, int], float]) -> str | None:
            log = sampled(FakeRunner(cost), plan)
            found = assemble(log, plan, mean_gains=None, identity=HERE, dtype="float32").unfit
            assert found == unfit(log, plan.cells())
            return found

        assert judged(straight) is None
        assert judged(lambda cell, number: straight(cell) * (1.4 if number > 5 else 1.0)) is None
        slow = judged(lambda cell, number: straight(cell) * (5.0 if number % 3 == 0 else 1.0))
        assert slow is not None and "differ by more than half" in slow
        log = Log(reference_s=[1.0, 1.0, 2.0, 2.0])
        assert unfit(log, []) == "its reference round changed by more than half"

    def test_doubtful_cells_are_repeated(self) -> None:
        """A disturbance of a moment is outvoted: the median of more repeats is the cost at rest."""
        plan = Plan((1, 8, 9, 64), (100,), 2, bisect=False)
        log = sampled(FakeRunner(lambda cell, number: straight(cell) * (5.0 if number in (3, 4) else 1.0)), plan)
        counts = {cell.rows: log.count(cell) for cell in plan.cells()}
        assert sorted(counts.values())[0] == 2 and max(counts.values()) == 5
        for cell in plan.cells():
            assert np.median(log.verify(cell)) == pytest.approx(straight(cell))

    def test_spread_is_a_standard_deviation(self) -> None:
        values = np.random.default_rng(0).normal(5.0, 0.3, 20_000)
        assert spread(values) == pytest.approx(0.3, rel=0.02)
        assert spread(np.array([1.0])) == 0.0


class TestAssemble:
    PLAN = Plan((1, 8, 9, 64), (100, 300, 500), 2, (1, 2, 4), (8, 64), (100, 300), bisect=False)

    def test_medians_and_parts(self) -> None:
        log = sampled(FakeRunner(straight), self.PLAN)
        profile = assemble(log, self.PLAN, mean_gains=np.array([0.5, 0.25]), identity=HERE, dtype="float32")
        for at, context in enumerate((100, 300, 500)):
            assert profile.verify_s[at].tolist() == [straight(Cell(row, context)) for row in (1, 8, 9, 64)]
        np.testing.assert_allclose(profile.draft_s, 0.005)
        np.testing.assert_allclose(profile.host_s, 0.002)
        assert profile.requests.tolist() == [1, 2, 4] and profile.batch is not None
        for at, count in enumerate((2, 4)):
            for row_at, row in enumerate((8, 64)):
                assert profile.batch.verify_s[at, 1, row_at] == straight(Cell(row, 300, count))
        assert profile.mean_gains is not None and profile.mean_gains.tolist() == [0.5, 0.25]
        assert profile.identity == HERE

    def test_drafting_of_several_is_carried_to_other_contexts(self) -> None:
        log = Log()
        drafts = {
            (100, 1): 0.1,
            (300, 1): 0.2,
            (500, 1): 0.4,
            (100, 2): 0.15,
            (300, 2): 0.30,
            (100, 4): 0.2,
            (300, 4): 0.5,
        }
        for cell in self.PLAN.cells():
            drafted = drafts[cell.context, cell.requests] if cell.rows > cell.requests else None
            log.samples[cell] = [Sample(0.1, drafted, 0.001)]
        profile = assemble(log, self.PLAN, mean_gains=None, identity=None, dtype="float32")
        # 500 lies beyond the batch contexts: what 300 takes beyond one request is added.
        np.testing.assert_allclose(profile.draft_s, [[0.1, 0.15, 0.2], [0.2, 0.3, 0.5], [0.4, 0.5, 0.7]])

    def test_what_is_not_complete_is_left_out(self) -> None:
        cells = [cell for cell in self.PLAN.cells() if cell.context != 500 or cell.rows == 1]
        log = Log({cell: [Sample(0.1, 0.1, 0.001)] for cell in cells if cell.requests < 4 or cell.rows == 8})
        profile = assemble(log, self.PLAN, mean_gains=None, identity=None, dtype="float32")
        assert profile.contexts.tolist() == [100, 300] and profile.requests.tolist() == [1, 2]
        only = Log({Cell(row, 100): [Sample(0.1, 0.1, 0.0)] for row in (1, 64)})
        profile = assemble(only, self.PLAN, mean_gains=None, identity=None, dtype="float32")
        assert profile.rows.tolist() == [1, 64] and profile.contexts.tolist() == [100] and profile.batch is None

    def test_too_little_is_an_error(self) -> None:
        log = Log({Cell(1, 100): [Sample(0.1, None, 0.0)]})
        with pytest.raises(CostError, match="time ran out after 1 measured rows"):
            assemble(log, self.PLAN, mean_gains=None, identity=None, dtype="float32")


class TestProfile:
    def test_planted_costs_come_out(self, tmp_path: Path) -> None:
        pair = clocked_pair(tmp_path, codec=True)
        options = MeasureOptions(contexts=(32, 64), max_nodes=20, prompts=2)
        profile = measure_profile(pair.engine, options, clock=pair.clock)
        assert profile.contexts.tolist() == [32, 64] and profile.steps == ()
        assert set(grid_rows(20)) <= set(profile.rows.tolist())
        for seconds in profile.verify_s:
            np.testing.assert_allclose(seconds, 0.010 + 0.0005 * profile.rows)
        assert profile.requests.tolist() == [1, 2, 4, 8]
        np.testing.assert_allclose(profile.draft_s, [[0.004, 0.005, 0.007, 0.011]] * 2)
        np.testing.assert_allclose(profile.host_s, 0.0, atol=1e-12)
        assert profile.batch is not None
        np.testing.assert_allclose(profile.batch.verify_s[:, 0, 0], [0.018 + 0.001 * n for n in (1, 3, 7)])
        profile.save(tmp_path / "p.json")
        assert CostProfile.load(tmp_path / "p.json").to_json() == profile.to_json()

    def test_the_time_limit_holds_for_everything(self, tmp_path: Path) -> None:
        pair = clocked_pair(tmp_path, codec=True, cost=lambda pack: 0.5)
        measure_profile(pair.engine, MeasureOptions(max_seconds=60.0, contexts=(32,), max_nodes=20), clock=pair.clock)
        assert 50.0 < pair.clock.now <= 61.0

    def test_interrupted_and_resumed(self, tmp_path: Path) -> None:
        partial = tmp_path / "p.json.partial"
        calls = 0

        def cost(pack: object) -> float:
            nonlocal calls
            calls += 1
            if calls == 60:
                raise KeyboardInterrupt
            return verify_cost(pack)  # type: ignore[arg-type]

        pair = clocked_pair(tmp_path, cost=cost)  # type: ignore[arg-type]
        pair.engine.identity = HERE
        options = MeasureOptions(contexts=(32,), max_nodes=20, partial=partial)
        with pytest.raises(KeyboardInterrupt):
            measure_profile(pair.engine, options, clock=pair.clock)
        stored = json.loads(partial.read_text())
        before = sum(len(cell["samples"]) for cell in stored["log"]["cells"])
        assert before > 10
        seen: list[int] = []
        resumed = MeasureOptions(contexts=(32,), max_nodes=20, partial=partial, resume=True)
        profile = measure_profile(
            pair.engine, resumed, clock=pair.clock, report=lambda done, total, left_s: seen.append(done)
        )
        assert seen[0] == before + 1
        np.testing.assert_allclose(profile.verify_s[0], 0.010 + 0.0005 * profile.rows)
        assert profile.notes["measured"]["seconds"] > stored["log"]["elapsed_s"]

    def test_what_cannot_be_resumed_is_named(self, tmp_path: Path) -> None:
        partial = tmp_path / "p.json.partial"
        with pytest.raises(UsageError, match=r"nothing to resume: .*p\.json\.partial does not exist"):
            MeasureOptions(partial=partial, resume=True)
        pair = clocked_pair(tmp_path)
        pair.engine.identity = HERE
        options = MeasureOptions(contexts=(32,), max_nodes=4, partial=partial)
        measure_profile(pair.engine, options, clock=pair.clock)
        plan = full_plan(4, (32,))
        assert load_partial(partial, plan, HERE).samples
        with pytest.raises(CostError, match="measured with other rows, contexts or repeats"):
            load_partial(partial, full_plan(5, (32,)), HERE)
        with pytest.raises(CostError, match="measured elsewhere: threads 1 against 2 here"):
            load_partial(partial, plan, Identity("cpu", 2, "float32", "sdpa", "m", "d", {"torch": "1"}))
        with pytest.raises(CostError, match="another kind of engine"):
            load_partial(partial, plan, None)
        partial.write_text('{"schema": 1}')
        with pytest.raises(CostError, match="expected unfinished work"):
            load_partial(partial, plan, HERE)

    def test_a_partial_file_that_cannot_be_written(self, tmp_path: Path) -> None:
        pair = clocked_pair(tmp_path)
        options = MeasureOptions(contexts=(32,), max_nodes=4, partial=tmp_path / "absent" / "p.partial")
        with pytest.raises(CostError, match="cannot be written"):
            measure_profile(pair.engine, options, clock=pair.clock)

    def test_without_a_drafter(self, tmp_path: Path) -> None:
        pair = clocked_pair(tmp_path, drafter=False)
        with pytest.raises(UsageError, match="measuring costs needs a drafter"):
            measure_profile(pair.engine, MeasureOptions(contexts=(32,)), clock=pair.clock)

    def test_draft_seconds_are_those_of_the_pass(self) -> None:
        assert draft_cost([None] * 3) == pytest.approx(0.006)  # type: ignore[list-item]


class TestGains:
    def test_mean_is_over_rounds_with_zeros_where_absent(self) -> None:
        rounds = [np.array([0.9, 0.5, 0.1]), np.array([0.3]), np.array([])]
        np.testing.assert_allclose(mean_sorted(rounds, 4), [0.4, 0.5 / 3, 0.1 / 3, 0.0])
        np.testing.assert_allclose(mean_sorted(rounds, 1), [0.4])

    def test_gains_are_those_of_the_rounds_decoded(self, tmp_path: Path) -> None:
        """A second route: the engine decodes the same prompts under the same budget; its rounds are counted."""
        pair = clocked_pair(tmp_path)
        engine, prompts = pair.engine, [[5, 6, 7, 8], [9, 10, 11]]
        stand = Stand(pair.engine.state, max_nodes=40)
        rounds = stand.gains(prompts, 12, frozenset(), width=6, candidates=8, until=lambda: False)
        stand.close()
        expected: list[float] = []
        first_gains: list[float] = []
        asked = len(pair.drafter.asked)
        for generation in engine.generate(prompts, policy="ddtree", budget=6, candidates=8, max_tokens=12):
            first_gains.append(len(generation.rounds))
        assert len(rounds) == sum(first_gains) - self.undrafted(engine, prompts)
        assert len(pair.drafter.asked) > asked
        expected = [float(gains[0]) for gains in rounds]
        assert mean_sorted(rounds, 40)[0] == pytest.approx(sum(expected) / len(expected))
        assert all(len(gains) == 40 for gains in rounds[:2]) and all((np.diff(g) <= 0).all() for g in rounds)

    @staticmethod
    def undrafted(engine: Engine, prompts: list[list[int]]) -> int:
        """Rounds at the end whose tree has no depth left."""
        results = engine.generate(prompts, policy="ddtree", budget=6, candidates=8, max_tokens=12)
        return sum(not record.drafted for result in results for record in result.rounds)

    def test_time_box(self, tmp_path: Path) -> None:
        pair = clocked_pair(tmp_path)
        stand = Stand(pair.engine.state, max_nodes=8)
        # Out of time from the start: one step of drafted rounds all the same.
        assert len(stand.gains([[1, 2, 3]], 12, frozenset(), width=4, candidates=8, until=lambda: True)) == 1
        assert stand._state.pool.requests == () and stand._state.waiting == []

    def test_bundled_prompts_come_from_all_sets(self) -> None:
        prompts = bundled_prompts(8)
        assert len(set(prompts)) == 8
        assert "Python" in prompts[1] and len(bundled_prompts(3)) == 3
        assert toy_codec().encode("ab") == [34, 35]
