"""Traces of drafters that score paths, and of unions: what is stored gives the trees that the engine had."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from families import VOCAB, family
from tiny_bench import TOKENS, ReadingDrafter, profile, units

from draftwood.cost.profile import CostProfile
from draftwood.draft import Drafter
from draftwood.draft.suffix import SuffixDrafter
from draftwood.draft.union import UnionDrafter
from draftwood.engine import Engine, EngineConfig, SamplingParams
from draftwood.errors import TraceError
from draftwood.policy import Policy, make_policy
from draftwood.prompts.units import Unit
from draftwood.trace.format import Trace, load
from draftwood.trace.record import RecordOptions, record
from draftwood.trace.replay import replay

OPTIONS = RecordOptions(max_tokens=TOKENS, end_ids=frozenset())
COSTS = profile()
POLICIES = {
    "chain": make_policy("chain"),
    "ddtree6": make_policy("ddtree", budget=6),
    "ddtree40": make_policy("ddtree", budget=40, candidates=3),
    "caddtree": make_policy("caddtree", profile=COSTS),
}


def drafter_of(kind: str) -> Drafter:
    knowing, suffix = ReadingDrafter(units()), SuffixDrafter()
    knowing.kv_row_bytes = 64  # as of a network
    return {"scores": knowing, "trees": suffix, "union": UnionDrafter([knowing, suffix])}[kind]


def engine_of(kind: str, costs: CostProfile = COSTS) -> Engine:
    target = family("llama", "float64").target
    return Engine(target, drafter_of(kind), config=EngineConfig(prefill_chunk=64), profile=costs, live_costs=False)


def traced(kind: str) -> Trace:
    return record(engine_of(kind), units(), None, OPTIONS, model="tiny", drafter=kind)


@pytest.fixture(scope="module")
def union() -> Trace:
    return traced("union")


def rounds_of(trace: Trace, policy: Policy) -> list[tuple[list[int], list[int]]]:
    return [(item.committed, item.rows) for item in replay(trace, policy, COSTS).requests]


def decoded(kind: str, policy: Policy, asked: list[Unit]) -> list[tuple[list[int], list[int]]]:
    """The engine's own rounds, one request after the other, with what the drafter learned in between."""
    engine, found = engine_of(kind), []
    for unit in asked:
        request = engine.make_request(unit.prompt_ids, policy, SamplingParams(TOKENS, end_ids=frozenset()))
        (request,) = engine.run([request])
        found.append(([one.committed for one in request.rounds], [one.rows for one in request.rounds]))
    return found


@pytest.mark.parametrize("name", POLICIES)
def test_a_unions_trace_replays_as_its_parts_alone(name: str, union: Trace) -> None:
    """What a drafter proposes depends on the text alone, so each part is what a trace of that drafter would hold."""
    for kind in ("scores", "trees"):
        assert rounds_of(union.part(kind), POLICIES[name]) == rounds_of(traced(kind), POLICIES[name])


@pytest.mark.parametrize("name", ["chain", "ddtree6", "ddtree40"])
@pytest.mark.parametrize("kind", ["trees", "union"])
def test_a_trace_replays_as_the_engine_ran(name: str, kind: str, union: Trace) -> None:
    """Reliabilities move with every token, drafted or not: the same at each position of the same text."""
    trace = union if kind == "union" else traced(kind)
    assert rounds_of(trace, POLICIES[name]) == decoded(kind, POLICIES[name], units())


@pytest.mark.parametrize("name", ["cast", "caddtree", "auto"])
def test_a_costly_part_is_left_out_where_the_engine_leaves_it_out(name: str, union: Trace) -> None:
    """Same rounds, and the seconds predicted for each know whether there was a pass."""
    costs = replace(COSTS, draft_s=20 * COSTS.draft_s)
    policy = make_policy(name, profile=costs)
    engine = engine_of("union", costs)
    asked = SamplingParams(TOKENS, end_ids=frozenset())
    requests = [
        request for unit in units() for request in engine.run([engine.make_request(unit.prompt_ids, policy, asked)])
    ]
    rounds = [one for request in requests for one in request.rounds]
    found = replay(union, policy, costs)
    assert [(item.committed, item.rows) for item in found.requests] == [
        ([one.committed for one in request.rounds], [one.rows for one in request.rounds]) for request in requests
    ]
    drafted_s = [one.predicted_s for one in rounds if one.drafted]
    assert min(drafted_s) < 0.02 < 0.05 < max(drafted_s)  # a pass takes 40 ms, a row no more than 11.2 ms
    np.testing.assert_allclose(
        [seconds for item in found.requests for seconds in item.predicted_s], [one.predicted_s for one in rounds]
    )


def test_stored_trees_survive_the_file(union: Trace, tmp_path: Path) -> None:
    union.save(tmp_path / "t.npz")
    again = load(tmp_path / "t.npz")
    for name in ("offsets", "parent", "token", "rank", "logp"):
        np.testing.assert_array_equal(getattr(again.trees, name), getattr(union.trees, name))
    assert len(again.trees.parent) > 100 and int(again.trees.token.max()) < VOCAB
    assert rounds_of(again, POLICIES["ddtree6"]) == rounds_of(union, POLICIES["ddtree6"])


def test_an_unknown_part_is_named(union: Trace) -> None:
    with pytest.raises(TraceError, match="part 'leaves': expected one of scores, trees"):
        union.part("leaves")
