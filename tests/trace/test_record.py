"""Recorded rounds, replayed, are the engine's rounds again."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from families import family
from stub_drafter import KnowingDrafter
from tiny_bench import TOKENS, engine, profile, text_of, units

from draftwood.core import DraftBlock
from draftwood.cost import LiveCosts, LiveFactors
from draftwood.engine import Engine, Request, SamplingParams
from draftwood.errors import TraceError, UsageError
from draftwood.policy import Policy, make_policy
from draftwood.prompts.units import Unit
from draftwood.trace.format import Trace, load
from draftwood.trace.record import EveryPosition, RecordOptions, record
from draftwood.trace.replay import replay

pytestmark = pytest.mark.portable

OPTIONS = RecordOptions(max_tokens=TOKENS, end_ids=frozenset())
COSTS = profile()
CASES: dict[str, tuple[str, dict[str, int]]] = {
    "chain": ("chain", {}),
    "ddtree4": ("ddtree", {"budget": 4}),
    "ddtree7": ("ddtree", {"budget": 7}),
    "ddtree16": ("ddtree", {"budget": 16}),
    "caddtree": ("caddtree", {}),
    "auto": ("auto", {}),
}


def policy_of(case: str) -> Policy:
    name, options = CASES[case]
    return make_policy(name, profile=COSTS, **options)


def decode(made: Engine, policy: Policy, asked: list[Unit]) -> list[Request]:
    """One request after the other, as the recorder does."""
    made.reset_policies()
    requests = []
    for unit in asked:
        requests += made.run([made.make_request(unit.prompt_ids, policy, SamplingParams(TOKENS, end_ids=frozenset()))])
    return requests


def assert_replays_as(trace: Trace, policy: Policy, requests: list[Request]) -> None:
    result = replay(trace, policy, COSTS)
    assert not result.biased
    for request, replayed in zip(requests, result.requests, strict=True):
        assert replayed.committed == [record.committed for record in request.rounds]
        assert replayed.rows == [record.rows for record in request.rounds]
        assert replayed.drafted == [record.drafted for record in request.rounds]


@pytest.mark.parametrize("case", ["chain", "ddtree7", "caddtree", "auto"])
def test_own_trace_replays_as_the_engine_ran(case: str, tmp_path: Path) -> None:
    policy = policy_of(case)
    trace = record(engine(profile=COSTS), units(), policy, OPTIONS, model="tiny", drafter="knows")
    trace.save(tmp_path / "t.npz")
    trace = load(tmp_path / "t.npz")
    requests = decode(engine(profile=COSTS), policy, units())
    assert max(record.committed for request in requests for record in request.rounds) > 2
    assert_replays_as(trace, policy, requests)
    assert trace.meta.policy == policy.name
    assert trace.meta.factor_names == ("base", "slope", "draft")


@pytest.fixture
def swinging(monkeypatch: pytest.MonkeyPatch) -> list[LiveFactors]:
    """Seconds of a machine whose rows swing between 1 and 7 times their price; returns the factors of every round.

    They take the place of what this machine measures, so that what is learned depends on the rounds alone.
    """
    used: list[LiveFactors] = []
    learn = LiveCosts.observe_target

    def observe_target(self: LiveCosts, single_s: float, rows_s: float, measured_s: float) -> LiveCosts:
        used.append(self.factors())
        slope = 4.0 + 3.0 * math.sin(len(used) / 4)
        return learn(self, single_s, rows_s, single_s + slope * (rows_s - single_s))

    monkeypatch.setattr(LiveCosts, "observe_target", observe_target)
    monkeypatch.setattr(LiveCosts, "observe_draft", lambda self, predicted_s, measured_s: self)
    return used


def test_auto_with_live_costs_replays_by_the_factors_it_used(swinging: list[LiveFactors]) -> None:
    policy = policy_of("auto")
    made = engine(profile=COSTS, live=True)
    trace = record(made, units(), policy, OPTIONS, model="tiny")
    assert trace.rounds.factors.tolist() == [[one.base, one.slope, one.draft] for one in swinging]
    assert len(np.unique(trace.rounds.factors[:, 1])) > 5
    result = replay(trace, policy, COSTS)
    assert [n for item in result.requests for n in item.committed] == trace.rounds.committed.tolist()
    assert [n - 1 for item in result.requests for n in item.rows] == trace.rounds.num_nodes.tolist()
    # They decided something: by the profile alone the trees have other sizes.
    plain = replace(trace, rounds=replace(trace.rounds, factors=np.ones_like(trace.rounds.factors)))
    assert replay(plain, policy, COSTS).requests != result.requests


def test_own_trace_of_another_policy_is_called_biased() -> None:
    trace = record(engine(), units(), policy_of("ddtree7"), OPTIONS, model="tiny")
    result = replay(trace, policy_of("chain"), COSTS)
    assert result.biased and "--every-position" in result.note


@pytest.fixture(scope="module")
def every_position() -> Trace:
    return record(engine(), units(), None, OPTIONS, model="tiny")


@pytest.mark.parametrize("case", ["chain", "ddtree4", "ddtree16", "caddtree", "auto"])
def test_every_position_trace_replays_any_policy(every_position: Trace, case: str) -> None:
    policy = policy_of(case)
    assert_replays_as(every_position, policy, decode(engine(profile=COSTS), policy, units()))


def test_every_position_text_is_transformers_own(every_position: Trace) -> None:
    for index, unit in enumerate(units()):
        assert every_position.output(index).tolist() == text_of(unit.prompt_ids)
        assert len(every_position.rounds_of(index)) == TOKENS - 1
    assert every_position.rounds.logp.shape == (3 * (TOKENS - 1), 7, 64)
    # The drafter offers 16 candidates; the rest has no probability.
    assert np.all(np.isneginf(every_position.rounds.logp[:, 0, 16:]))


def test_a_batch_records_the_same_rounds(every_position: Trace) -> None:
    batched = record(
        engine(), units(), None, RecordOptions(max_tokens=TOKENS, end_ids=frozenset(), batch=3), model="tiny"
    )
    assert np.array_equal(batched.rounds.logp, every_position.rounds.logp)
    assert np.array_equal(batched.rounds.ids, every_position.rounds.ids)
    assert np.array_equal(batched.requests.output_ids, every_position.requests.output_ids)


def test_text_cut_at_a_stop() -> None:
    unit = units()[0]
    text = text_of(unit.prompt_ids)
    stop = text[17]
    at = text.index(stop)
    options = RecordOptions(max_tokens=TOKENS, end_ids=frozenset([stop]))
    own = record(engine(), [unit], policy_of("ddtree16"), options, model="tiny")
    assert own.output(0).tolist() == text[: at + 1] and own.requests.finish.tolist() == ["stop"]
    every = record(engine(), [unit], None, options, model="tiny")
    expected = replay(own, policy_of("ddtree16"), COSTS).requests[0]
    found = replay(every, policy_of("ddtree16"), COSTS).requests[0]
    assert sum(found.committed) == at and found.committed == expected.committed and found.rows == expected.rows


def test_records_seconds_by_stage_and_hashes(every_position: Trace) -> None:
    own = record(engine(), units(), policy_of("chain"), OPTIONS, model="tiny")
    verify = own.meta.stages.index("verify")
    assert np.all(own.rounds.seconds[:, verify] > 0)
    assert own.requests.prompt_hash.tolist() == [unit.prompt_hash for unit in units()]


def test_leaves_the_engine_as_it_was() -> None:
    made = engine()
    drafter, stages = made.state.drafter, made.loop._stages
    record(made, units()[:1], None, OPTIONS, model="tiny")
    assert made.state.drafter is drafter and made.loop._stages is stages
    assert made.state.pool.requests == () and drafter.taps == {}  # type: ignore[union-attr]


def test_refusals() -> None:
    alone = Engine(family("llama", "float64").target)
    with pytest.raises(UsageError, match="--drafter"):
        record(alone, units(), None, OPTIONS, model="tiny")
    with pytest.raises(UsageError, match="'ar' never drafts"):
        record(engine(), units(), make_policy("ar"), OPTIONS, model="tiny")
    with pytest.raises(UsageError, match="batch 2"):
        record(engine(), units(), policy_of("chain"), RecordOptions(batch=2), model="tiny")
    assert EveryPosition().max_nodes == 0


def test_scores_that_depend_on_the_parent_are_refused() -> None:
    class Parented(KnowingDrafter):
        def score(self, requests: object, candidates: int) -> DraftBlock:
            ids = np.broadcast_to(np.arange(4), (1, 7, 4, 4))
            return DraftBlock(np.full((1, 7, 4, 4), -1.4, np.float32), ids.copy(), np.array([7]))

        def open(self, request: int, token_ids: np.ndarray, rows: int) -> None:
            self.know(request, token_ids.tolist(), 0)
            super().open(request, token_ids, rows)

    made = Engine(family("llama", "float64").target, Parented(64))
    with pytest.raises(TraceError, match="parent's rank"):
        record(made, units()[:1], None, OPTIONS, model="tiny")
    assert made.state.pool.requests == ()
