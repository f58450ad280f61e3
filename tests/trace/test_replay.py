from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import made_trace
import numpy as np
import pytest

from draftwood.core import DraftTree
from draftwood.cost.profile import CostProfile
from draftwood.errors import TraceError, UsageError
from draftwood.policy import Policy, PolicyState, RoundCosts, RoundOutcome
from draftwood.policy.ar import Ar
from draftwood.policy.auto import Auto
from draftwood.policy.caddtree import CaddTree
from draftwood.policy.chain import Chain
from draftwood.policy.ddtree import DdTree
from draftwood.policy.ratio import Ratio
from draftwood.trace.builder import TraceBuilder, TraceRound
from draftwood.trace.format import Trace, load
from draftwood.trace.grown import GrownTrees, Nursery
from draftwood.trace.players import policy_options
from draftwood.trace.replay import ReplayResult, replay
from draftwood.trace.shapes import binary, chain, medusa
from draftwood.tree.grow import root_tree

Measure = Callable[[Callable[[], object]], float]


def profile(slope_s: float = 0.001, draft_s: float = 0.004) -> CostProfile:
    """Convex: 10 ms for one row, `slope_s` per row up to 16, three times that behind; 20 % more per 1000 of context."""
    rows = [1, 16, 129]
    seconds = [0.01, 0.01 + 15 * slope_s, 0.01 + 15 * slope_s + 113 * 3 * slope_s]
    return CostProfile.from_json(
        {"schema": 1, "rows": rows, "contexts": [0, 5000], "verify_s": [seconds, [2.0 * s for s in seconds]],
         "draft_s": [draft_s, draft_s], "host_s": None, "requests": 1, "dtype": "float32"}
    )  # fmt: skip


def recorded_tree(trace: Trace, round_index: int) -> DraftTree:
    """The tree that the recorded run verified in a round, grown again; the root alone where nothing was chosen."""
    rounds = trace.rounds
    num_nodes = int(rounds.num_nodes[round_index])
    if num_nodes == 0:
        return root_tree(int(rounds.pending[round_index]))
    return GrownTrees(trace, candidates=int(rounds.candidates[round_index]), max_nodes=num_nodes)[round_index].tree


def lists(result: ReplayResult) -> list[tuple[list[int], list[int]]]:
    return [(item.committed, item.rows) for item in result.requests]


@pytest.mark.parametrize(("budget", "k"), [(1, None), (7, None), (12, 3), (0, None)])
def test_ddtree_equals_plain_decoding(budget: int, k: int | None) -> None:
    trace = made_trace.every_position([12, 1, 30, 2], seed=1)
    policy = DdTree(budget=budget, k=k)
    found = replay(trace, policy)
    expected = made_trace.decode(trace, lambda index: budget, policy.candidates, budget)
    assert lists(found) == expected
    assert found.tokens == sum([11, 0, 29, 1])
    assert not found.biased
    assert found.predicted_s is None and found.tokens_per_s is None


def test_chain_and_ar() -> None:
    trace = made_trace.every_position([25, 9], seed=2)
    assert lists(replay(trace, Chain())) == made_trace.decode(trace, lambda index: 99, 1, 99)
    plain = replay(trace, Ar())
    assert lists(plain) == [([1] * 24, [1] * 24), ([1] * 8, [1] * 8)]
    assert plain.skipped_rounds == 32


def test_a_stop_cuts_the_last_round_but_not_the_tree() -> None:
    """When the text ended by a stop, the request could not know: the tree is as deep as max_tokens allows."""
    stopped = made_trace.every_position([10], seed=3, finish="stop", slack=50)
    capped = made_trace.every_position([10], seed=3)
    deep, cut = replay(stopped, Chain()), replay(capped, Chain())
    assert lists(deep) == made_trace.decode(stopped, lambda index: 99, 1, 99)
    assert deep.requests[0].rows[-1] == 5
    assert cut.requests[0].rows[-1] < 5
    assert sum(deep.requests[0].committed) == sum(cut.requests[0].committed) == 9


def test_one_token_left_is_not_drafted() -> None:
    trace = made_trace.every_position([2], seed=4)
    found = replay(trace, DdTree(budget=4))
    assert lists(found) == [([1], [1])]
    assert found.skipped_rounds == 1


@pytest.mark.parametrize("shape", [medusa(20, 4), binary(20, 4), chain(20, 4)])
def test_shapes_follow_the_text(shape: object) -> None:
    """By a second route: the longest prefix of realised ranks that is a path of the shape."""
    trace = made_trace.every_position([40], seed=5)
    paths: dict[int, tuple[int, ...]] = {0: ()}
    for node in range(1, shape.num_nodes + 1):  # type: ignore[attr-defined]
        paths[node] = (*paths[int(shape.parent[node])], int(shape.rank[node]))  # type: ignore[attr-defined]
    known = set(paths.values())
    found = replay(trace, shape).requests[0]  # type: ignore[arg-type]
    position = 0
    for committed, rows in zip(found.committed, found.rows, strict=True):
        depth = min(4, 40 - position - 2)
        ranks = tuple(
            int(np.flatnonzero(trace.rounds.ids[position, d] == token)[0])
            for d, token in enumerate(trace.output(0)[position + 1 : position + 1 + depth])
        )
        accepted = max(d for d in range(len(ranks) + 1) if ranks[:d] in known)
        assert committed == accepted + 1
        assert rows == 1 + sum(0 < len(path) <= depth for path in known)
        position += committed
    assert position == 39


def test_chain_shape_equals_the_chain_policy() -> None:
    trace = made_trace.every_position([40, 13], seed=6)
    assert lists(replay(trace, chain(6, 4))) == lists(replay(trace, Chain()))


def test_predicted_seconds_by_hand() -> None:
    trace = made_trace.every_position([5], seed=7)  # contexts 5..8
    found = replay(trace, DdTree(budget=3), profile())
    context, total = 5, 0.0
    for committed, rows, drafted in zip(
        found.requests[0].committed, found.requests[0].rows, found.requests[0].drafted, strict=True
    ):
        verify = (0.01 + (rows - 1) * 0.001) * (1 + 0.2 * context / 1000)
        total += verify + (0.004 if drafted else 0.0)
        context += committed
    assert found.predicted_s == pytest.approx(total, rel=1e-12)
    assert found.tokens_per_s == pytest.approx(4 / total)


@pytest.mark.parametrize("policy", [Ratio(max_nodes=12, candidates=5), CaddTree(max_nodes=12, candidates=5)])
def test_cost_aware_policies_equal_plain_decoding(policy: Policy) -> None:
    """The best ratio, searched here over the enumerated trees."""
    trace = made_trace.every_position([20, 12], seed=8, finish="stop", slack=40)
    prices = profile(slope_s=0.002)

    def width(index: int) -> int:
        logp = trace.rounds.logp[index]
        paths = made_trace.best_first(logp, 12, 5, 4)
        gains = [np.exp(sum(np.float64(logp[d, rank]) for d, rank in enumerate(path))) for path in paths]
        cost = prices.round_cost(1, int(trace.rounds.context[index]), max_nodes=12, curve=policy.curve).round_s
        ratios = [(1 + sum(gains[:n])) / cost[n] for n in range(13)]
        return int(np.argmax(ratios))

    found = replay(trace, policy, prices)
    assert lists(found) == made_trace.decode(trace, width, 5, 12)
    assert len(set(found.requests[0].rows)) > 2


def test_every_arm_is_priced_by_the_measured_curve() -> None:
    """On a curve with a hump the convex fit, which `caddtree` chooses by, is another one."""
    rows, seconds = [1, 4, 8, 33], [0.010, 0.030, 0.031, 0.032]
    prices = CostProfile.from_json(
        {"schema": 1, "rows": rows, "contexts": [10], "verify_s": [seconds], "draft_s": None, "host_s": None,
         "requests": 1, "dtype": "float32"}
    )  # fmt: skip
    found = replay(made_trace.every_position([30], seed=15), CaddTree(max_nodes=12, candidates=5), prices).requests[0]
    assert found.predicted_s == pytest.approx(np.interp(found.rows, rows, seconds).tolist())
    assert max(found.rows) > 1


@dataclass(frozen=True, slots=True)
class Memory:
    """Drafts every other round of a request, and verifies as many nodes as all requests accepted so far."""

    candidates: int = 4
    max_nodes: int = 20
    name: ClassVar[str] = "memory"
    drafts: ClassVar[bool] = True
    needs_costs: ClassVar[bool] = False
    shares: ClassVar[bool] = False
    curve: ClassVar[str] = "measured"

    def wants_draft(self, state: PolicyState, costs: RoundCosts | None) -> bool:
        return (state.request or 0) % 2 == 0

    def choose(self, gains: np.ndarray, round_cost_s: np.ndarray | None, base_tokens: float, state: PolicyState) -> int:
        return min(len(gains), 1 + (state.engine or 0))

    def observe(self, state: PolicyState, outcome: RoundOutcome) -> PolicyState:
        assert len(outcome.path) == outcome.record.accepted + 1
        return PolicyState((state.request or 0) + 1, (state.engine or 0) + outcome.record.accepted)


def test_state_travels_between_rounds_and_requests() -> None:
    trace = made_trace.every_position([25, 25], seed=9)
    carried, fresh = replay(trace, Memory()), replay(trace, Memory(), fresh_state=True)
    assert carried.requests[0] == fresh.requests[0]
    assert carried.requests[1].rows[0] > fresh.requests[1].rows[0] == 2
    assert carried.requests[0].drafted[:4] == [True, False, True, False]
    assert carried.skipped_rounds == sum(rows == 1 for item in carried.requests for rows in item.rows)
    assert lists(replay(trace, Memory())) == lists(carried)


def engine_trace(trace: Trace, policy: Policy) -> tuple[Trace, list[tuple[list[int], list[int]]]]:
    """What an engine under `policy` (a fixed budget) would record while it decodes the text of `trace`."""
    builder = TraceBuilder(
        replace(trace.meta, every_position=False, policy=policy.name, options=policy_options(policy)), depth=4
    )
    decoded = made_trace.decode(trace, lambda index: policy.max_nodes, policy.candidates, policy.max_nodes)
    for request, (committed, rows) in enumerate(decoded):
        output = trace.output(request)
        info = trace.requests
        opened = builder.add_request(
            request_id=str(request), set_name="made", prompt_hash="00", prompt_len=int(info.prompt_len[request]),
            max_tokens=int(info.max_tokens[request]),
        )  # fmt: skip
        position = 0
        for step, row in zip(committed, rows, strict=True):
            index = trace.rounds_of(request).start + position
            drafted = row > 1
            depth = int(trace.rounds.depth[index])
            logp, ids = trace.rounds.logp[index, :depth], trace.rounds.ids[index, :depth]
            remaining = int(info.max_tokens[request]) - position - 1
            paths = made_trace.best_first(logp, row - 1, 5, min(depth, max(remaining - 1, 0))) if drafted else []
            realised = tuple(
                int(np.flatnonzero(ids[d] == token)[0]) for d, token in enumerate(output[position + 1 :][:depth])
            )
            accepted = [n for n, path in enumerate(paths, 1) if path == realised[: len(path)]]
            builder.add_round(
                opened,
                TraceRound(
                    position, int(output[position]), int(info.prompt_len[request]) + position,
                    logp if drafted else None, ids if drafted else None, policy.candidates if drafted else 0,
                    row - 1, accepted, step,
                ),
            )  # fmt: skip
            position += step
        builder.finish_request(opened, output, str(info.finish[request]))
    return builder.build(), decoded


def test_own_trace_gives_the_run_again(tmp_path: object) -> None:
    source = made_trace.every_position([30, 18], seed=10)
    policy = DdTree(budget=5)
    trace, decoded = engine_trace(source, policy)
    trace.save(tmp_path / "own.npz")  # type: ignore[operator]
    trace = load(tmp_path / "own.npz")  # type: ignore[operator]
    found = replay(trace, policy)
    assert lists(found) == decoded == lists(replay(source, policy))
    assert found.requests[0].committed == trace.rounds.committed[list(trace.rounds_of(0))].tolist()
    assert not found.biased


def test_recorded_trees_come_back() -> None:
    trace, decoded = engine_trace(made_trace.every_position([30, 18], seed=10), DdTree(budget=5))
    assert [recorded_tree(trace, index).num_rows for index in range(trace.num_rounds)] == decoded[0][1] + decoded[1][1]
    for index in range(trace.num_rounds):
        path = trace.accepted_path(index)
        tokens = recorded_tree(trace, index).token[path]
        assert tokens.tolist() == trace.realised(index)[: len(path)].tolist()


@pytest.mark.parametrize("policy", [Auto(max_nodes=12, candidates=5), Memory()])
def test_the_same_prompt_five_times(policy: Policy) -> None:
    """Nothing is carried over when the state starts afresh."""
    single = made_trace.every_position([40], seed=14)
    builder = TraceBuilder(single.meta, depth=4)
    for number in range(5):
        opened = builder.add_request(
            request_id=str(number), set_name="made", prompt_hash="00", prompt_len=5, max_tokens=40
        )
        for index in range(single.num_rounds):
            position = int(single.rounds.position[index])
            scores = single.rounds.logp[index], single.rounds.ids[index]
            builder.add_round(opened, TraceRound(position, int(single.rounds.pending[index]), 5 + position, *scores))
        builder.finish_request(opened, single.output(0), "length")
    found = replay(builder.build(), policy, profile(), fresh_state=True)
    assert len({str(item) for item in found.requests}) == 1
    assert found.requests[0] == replay(single, policy, profile()).requests[0]


def test_own_trace_is_biased_for_others() -> None:
    trace, _ = engine_trace(made_trace.every_position([30], seed=11), DdTree(budget=5))
    for arm in (DdTree(budget=6), DdTree(budget=5, k=2), Chain(), binary(5, 4)):
        found = replay(trace, arm)
        assert found.biased
        assert "ddtree" in found.note and "every-position" in found.note and "\n" not in found.note
        assert found.num_rounds == trace.num_rounds
    assert not replay(trace, DdTree(budget=5)).biased


def test_recorded_factors_correct_the_costs() -> None:
    source, _ = engine_trace(made_trace.every_position([30], seed=12), DdTree(budget=5))
    slow = replace(
        source,
        meta=replace(source.meta, factor_names=("base", "slope", "draft")),
        rounds=replace(source.rounds, factors=np.tile([1.0, 3.0, 2.0], (source.num_rounds, 1))),
    )
    found, plain = replay(slow, DdTree(budget=5), profile()), replay(source, DdTree(budget=5), profile())
    index = plain.requests[0].rows.index(6)
    context = int(source.rounds.context[index])
    tilt = 1 + 0.2 * context / 1000
    assert plain.requests[0].predicted_s[index] == pytest.approx(0.015 * tilt + 0.004)
    assert found.requests[0].predicted_s[index] == pytest.approx((0.01 + 3 * 0.005) * tilt + 2 * 0.004)
    odd = replace(slow, meta=replace(slow.meta, factor_names=("base", "slope", "speed")))
    with pytest.raises(TraceError, match="speed: expected base, slope, draft"):
        replay(odd, DdTree(budget=5), profile())


def test_no_rounds_give_no_numbers() -> None:
    found = replay(made_trace.every_position([1, 1]), DdTree(budget=4), profile())
    payload = found.to_json()
    assert payload["num_rounds"] == payload["tokens"] == 0
    assert payload["mean_committed"] is None and payload["tokens_per_s"] is None and payload["mean_rows"] is None
    json.dumps(payload, allow_nan=False)


def test_totals_of_recorded_rounds() -> None:
    found = replay(made_trace.every_position([40], seed=13), DdTree(budget=4), profile())
    rows = found.requests[0].rows
    assert found.mean_committed == pytest.approx(39 / len(rows))
    assert found.mean_rows == pytest.approx(sum(rows) / len(rows))
    assert found.sd_rows == pytest.approx(float(np.std(rows)))
    json.dumps(found.to_json(), allow_nan=False)


def test_wrong_use() -> None:
    trace = made_trace.every_position([9])
    with pytest.raises(UsageError, match="policy ratio chooses by cost: a profile is needed"):
        replay(trace, Ratio())
    narrow = replace(
        trace, rounds=replace(trace.rounds, logp=trace.rounds.logp[..., :4], ids=trace.rounds.ids[..., :4])
    )
    with pytest.raises(UsageError, match="reads 8 candidates, the trace keeps 4"):
        replay(narrow, medusa(20, 4))
    ids = trace.rounds.ids.copy()
    ids[0, 0, 1] = ids[0, 0, 0]
    with pytest.raises(TraceError, match=r"round 0: .*each token once"):
        replay(replace(trace, rounds=replace(trace.rounds, ids=ids)), DdTree(budget=4))


def test_forests_are_shared_and_bounded() -> None:
    nursery = Nursery(made_trace.every_position([9]))
    large = nursery.get(2, 1024)
    assert large.max_nodes == nursery.bound(2, 1024) == 2 + 4 + 8 + 16
    assert nursery.get(2, 16) is large
    assert nursery.get(3, 16) is not large
    assert nursery.bound(64, 1024) == 1024


def large_trace(requests: int) -> Trace:
    """100 rounds a request, 15 depths and 64 candidates, as a recorder of the real pair writes it."""
    rng = np.random.default_rng(0)
    small = made_trace.every_position([101] * requests)
    shape = (100 * requests, 15, 64)
    logp = -np.sort(rng.exponential(2.0, size=shape), axis=2) - np.linspace(0.1, 1.5, 15)[None, :, None]
    ids = np.tile(rng.permutation(40_000)[: 15 * 64].reshape(15, 64).astype(np.int32), (shape[0], 1, 1))
    ids[:, :, 0] = np.where(rng.random(shape[:2]) < 0.8, 50_000, ids[:, :, 0])
    depth = np.full(shape[0], 15, np.int32)
    return replace(
        small,
        meta=replace(small.meta, vocab_size=50_001, every_position=False, policy="other"),
        rounds=replace(
            small.rounds, logp=logp.astype(np.float32), ids=ids, pending=np.full(shape[0], 50_000), depth=depth
        ),
        requests=replace(small.requests, output_ids=np.full(101 * requests, 50_000, np.int32)),
    )


@pytest.mark.parametrize(("policy", "units"), [(DdTree(budget=16), 70), (CaddTree(), 70), (Auto(), 175)])
def test_two_thousand_rounds_in_a_moment(policy: Policy, units: float, measured_in_units: Measure) -> None:
    """A unit is 6 ms where 10,000 rounds, all of them visited, must take 2 s (auto: 5 s)."""
    trace, prices = large_trace(20), profile(slope_s=0.0004)
    found = replay(trace, policy, prices)  # compiles
    assert found.num_rounds == 2_000
    assert measured_in_units(lambda: replay(trace, policy, prices)) < units
