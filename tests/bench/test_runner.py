"""The paired runner: order, freshness of every run, timers, outside methods."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tiny_bench import TOKENS, engine, profile, text_of, units

from draftwood.bench.plan import BenchRow, CostNoise, Panel, fixed_row, rows_of
from draftwood.bench.runner import EngineArm, MethodArm, Sample, Turn, run_panel, turns
from draftwood.bench.session import BenchOptions, make_arms
from draftwood.engine import Engine
from draftwood.errors import UsageError

COSTS = profile()
OPTIONS = BenchOptions(profile=COSTS, end_ids=frozenset(), measure_floor=False)


def panel(policies: str = "ar,chain,auto", budgets: tuple[int, ...] = (), **changes: object) -> Panel:
    made = Panel("", rows_of(policies.split(","), budgets), max_tokens=TOKENS)
    return replace(made, **changes)  # type: ignore[arg-type]


def measure(made: Engine, plan: Panel, options: BenchOptions = OPTIONS) -> list[Sample]:
    found: list[Sample] = []
    run_panel(plan, units(), make_arms(made, plan, options, {}), keep=found.append)
    return found


class TestRows:
    def test_plain_is_always_there_and_first(self) -> None:
        assert [row.label for row in rows_of(["chain"], [4, 8])] == ["ar", "chain", "ddtree 4", "ddtree 8"]
        assert [row.label for row in rows_of(["ddtree", "ar"], [])] == ["ar", "ddtree"]
        assert [row.budget for row in rows_of(["ddtree"], [4])] == [None, 4]

    @pytest.mark.parametrize(
        ("policies", "budgets", "words"),
        [
            (["tree"], [], "policy 'tree'"),
            (["chain", "chain"], [], "each name once"),
            ([], [4, 4], "each once"),
            ([], [2000], "budget 2000"),
        ],
    )
    def test_refusals(self, policies: list[str], budgets: list[int], words: str) -> None:
        with pytest.raises(UsageError, match=words):
            rows_of(policies, budgets)

    def test_candidates_go_where_they_are_taken(self) -> None:
        options = {row.label: dict(row.options) for row in rows_of(["chain", "auto"], [4], candidates=8)}
        assert options == {"ar": {}, "chain": {}, "auto": {"candidates": 8}, "ddtree 4": {"budget": 4, "candidates": 8}}

    def test_noise_moves_beliefs_about_slope_and_drafting(self) -> None:
        noisy = CostNoise(slope=2.0, draft=0.5).apply(COSTS)
        assert noisy.target_s(1, 16) == pytest.approx(COSTS.target_s(1, 16))
        extra = COSTS.target_s(65, 16) - COSTS.target_s(1, 16)
        assert noisy.target_s(65, 16) - noisy.target_s(1, 16) == pytest.approx(2 * extra)
        assert noisy.draft_cost_s(16) == pytest.approx(COSTS.draft_cost_s(16) / 2)


class TestOrder:
    def test_rows_take_turns_on_every_prompt(self) -> None:
        order = [(turn.unit.prompt_id, turn.row, turn.repeat) for turn in turns(panel(repeats=2), units())]
        assert order[:6] == [
            ("p0", "ar", 0), ("p0", "chain", 0), ("p0", "auto", 0),
            ("p1", "chain", 0), ("p1", "auto", 0), ("p1", "ar", 0),
        ]  # fmt: skip
        assert len(order) == len(set(order)) == 3 * 3 * 2

    def test_sets_one_after_the_other(self) -> None:
        two = [*units("a"), *units("b")]
        names = [turn.unit.set_name for turn in turns(panel(), two)]
        assert names == ["a"] * 9 + ["b"] * 9

    def test_done_turns_are_left_out(self) -> None:
        plan, made = panel("ar,chain"), engine()
        everything = measure(made, plan)
        again: list[Sample] = []
        done = frozenset(sample.key for sample in everything[:4])
        ended: list[str] = []
        arms = make_arms(made, plan, OPTIONS, {})
        run_panel(plan, units(), arms, done=done, keep=again.append, set_ended=ended.append)
        assert [sample.key for sample in again] == [sample.key for sample in everything[4:]]
        assert ended == ["toy"]


class TestFreshRuns:
    @pytest.mark.parametrize("policy", ["chain", "caddtree", "auto"])
    def test_same_prompt_five_times_gives_the_same_rounds(self, policy: str) -> None:
        made = engine(profile=COSTS)
        arm = EngineArm(made, BenchRow(policy, policy), COSTS, live_costs=False, end_ids=frozenset())
        other = EngineArm(made, BenchRow("other", "auto"), COSTS, live_costs=False, end_ids=frozenset())
        plan = panel()
        runs = []
        for repeat in range(5):
            runs.append(arm.run(Turn(plan, units()[0], policy, 0, repeat), TOKENS))
            # Whoever runs between must leave nothing behind, under the same policy object's state too.
            other.run(Turn(plan, units()[1], "other", 0, repeat), TOKENS)
        assert all(run.committed == runs[0].committed and run.rows == runs[0].rows for run in runs)
        assert max(runs[0].committed) > 2

    def test_without_the_reset_auto_would_carry_its_state(self) -> None:
        made = engine(profile=COSTS)
        arm = EngineArm(made, BenchRow("auto", "auto"), COSTS, live_costs=False, end_ids=frozenset())
        arm.run(Turn(panel(), units()[0], "auto", 0, 0), TOKENS)
        assert made.state.policy_shared
        made.reset_policies()
        assert not made.state.policy_shared

    def test_live_correction_starts_afresh(self) -> None:
        made = engine(profile=COSTS, live=True)
        assert made.state.costs is not None
        made.generate([units()[0].prompt_ids], policy="ddtree", max_tokens=TOKENS)
        assert made.state.costs.factors.base != 1.0
        made.reset_policies()
        assert made.state.costs.factors.base == 1.0


class TestSamples:
    def test_texts_and_times(self) -> None:
        samples = measure(engine(), panel("ar,chain", (4,)))
        for sample in samples:
            unit = next(unit for unit in units() if unit.prompt_id == sample.prompt_id)
            assert sample.token_ids == text_of(unit.prompt_ids) and sample.finish == "length"
            assert sum(sample.committed) == len(sample.token_ids) - 1
            assert sample.prefill_s > 0 and sample.decode_s > 0
            assert 0 < sample.first_draft_s < sample.decode_s
            assert sample.prompt_hash == unit.prompt_hash
        plain = [sample for sample in samples if sample.row == "ar"]
        assert all(set(sample.committed) == {1} and not any(sample.drafted) for sample in plain)

    def test_prefill_in_chunks_is_not_taken_for_the_first_verification(self) -> None:
        made = engine()
        made.state.config = replace(made.state.config, prefill_chunk=23)
        arm = EngineArm(made, BenchRow("ddtree", "ddtree"), None, end_ids=frozenset())
        sample = arm.run(Turn(panel(), units()[1], "ddtree", 0, 0), TOKENS)
        assert 0 < sample.first_draft_s < sample.decode_s

    def test_stages_on_demand(self) -> None:
        plan = panel("ar,chain", timing=True)
        samples = measure(engine(), plan)
        assert all(len(sample.stage_s["verify"]) == len(sample.committed) for sample in samples)
        assert all(sample.stage_s == {} for sample in measure(engine(), panel("ar,chain")))

    def test_peak_memory_is_of_this_run(self) -> None:
        sample = measure(engine(), panel("ar"))[0]
        assert sample.peak_bytes is None or 10e6 < sample.peak_bytes < 100e9

    def test_errors_name_the_place(self) -> None:
        made = engine()
        made.state.drafter.texts = None  # type: ignore[union-attr, assignment]
        with pytest.raises(UsageError, match="needs a drafter"):
            make_arms(Engine(made.state.target), panel("chain"), OPTIONS, {})
        with pytest.raises(UsageError, match="chooses by cost"):
            make_arms(engine(), panel("auto"), replace(OPTIONS, profile=None), {})


class TestMethods:
    def test_decode_seconds_leave_prefill_out(self) -> None:
        calls = []

        def method(prompt_ids: list[int], max_tokens: int) -> list[int]:
            calls.append(max_tokens)
            return [1] * max_tokens

        arm = MethodArm(method, 64, "cpu")
        sample = arm.run(Turn(panel(), units()[0], "m", 0, 0), 12)
        assert calls == [1, 12] and sample.token_ids == [1] * 12 and sample.committed == []
        assert sample.decode_s >= 0 and sample.finish == "length"

    @pytest.mark.parametrize("output", [[], [1.5], [[1]], [64], [-1], [1] * 13])
    def test_bad_outputs(self, output: list[int]) -> None:
        arm = MethodArm(lambda ids, tokens: output, 64, "cpu")
        with pytest.raises(UsageError, match="method m"):
            arm.run(Turn(panel(), units()[0], "m", 0, 0), 12)

    def test_sampling_is_refused(self) -> None:
        with pytest.raises(UsageError, match="outside methods decode greedily"):
            Panel("", (BenchRow("ar", "ar"), BenchRow("m", "m", method=True)), temperature=1.0)


def test_panel_refusals() -> None:
    with pytest.raises(UsageError, match="appears twice"):
        Panel("", (fixed_row(4), fixed_row(4)))
    with pytest.raises(UsageError, match="max_tokens 1"):
        Panel("", rows_of([], []), max_tokens=1)
    with pytest.raises(UsageError, match="repeats 0"):
        Panel("", rows_of([], []), repeats=0)
    assert Panel("", rows_of([], []), max_tokens=9, set_tokens={"math": 5}).tokens_for("my-math500") == 5
