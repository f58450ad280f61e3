"""Expected values are worked out by hand on a trace of one request and five tokens, D = 2, K = 4."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import asdict

import made_trace
import numpy as np
import pytest

from draftwood.core import DraftTree
from draftwood.cost.profile import CostProfile
from draftwood.errors import UsageError
from draftwood.policy.chain import Chain
from draftwood.policy.ddtree import DdTree
from draftwood.trace import diagnostics, regret
from draftwood.trace.builder import TraceBuilder, TraceRound
from draftwood.trace.format import Trace
from draftwood.trace.grown import GrownRound, Nursery
from draftwood.trace.replay import replay
from draftwood.trace.shapes import binary, chain, medusa

P1, P2 = [0.55, 0.25, 0.125, 0.0625], [0.75, 0.125, 0.0625, 0.03125]


def hand_trace() -> Trace:
    """Output 0 1 2 3 0 (V = 4); a sixth token could have come, so the last round may still draft one level.

    | round | pending | text after | depth 1 ids | depth 2 ids | ranks of the text |
    |-------|---------|------------|-------------|-------------|-------------------|
    | 0     | 0       | 1 2 3 0    | 1 2 3 0     | 3 2 1 0     | 0, 1              |
    | 1     | 1       | 2 3 0      | 0 1 2 3     | 3 0 1 2     | 2, 0              |
    | 2     | 2       | 3 0        | 3 0 1 2     | 0 3 2 1     | 0, 0              |
    | 3     | 3       | 0          | 2 1 3 0     | -           | 3                 |
    """
    builder = TraceBuilder(made_trace.meta(vocab_size=4), depth=2)
    request = builder.add_request(request_id="a", set_name="hand", prompt_hash="0", prompt_len=3, max_tokens=6)
    output = [0, 1, 2, 3, 0]
    ids = [[[1, 2, 3, 0], [3, 2, 1, 0]], [[0, 1, 2, 3], [3, 0, 1, 2]], [[3, 0, 1, 2], [0, 3, 2, 1]], [[2, 1, 3, 0]]]
    for position, block in enumerate(ids):
        logp = np.log(np.array([P1, P2][: len(block)], dtype=np.float32))
        builder.add_round(request, TraceRound(position, output[position], 3 + position, logp, np.array(block)))
    builder.finish_request(request, output, "stop")
    return builder.build()


def test_correction_ranks_by_hand() -> None:
    found = diagnostics.correction_ranks(hand_trace())
    # Round 0 is rejected at depth 2 (rank 2), round 1 at depth 1 (rank 3), round 2 never, round 3 at depth 1 (rank 4).
    assert found.counts == [0, 1, 1, 1]
    assert (found.rounds, found.events, found.outside) == (4, 3, 0)
    assert (found.share_2_to_4, found.share_5_to_8, found.share_beyond_32) == (1.0, 0.0, 0.0)


def test_correction_ranks_on_the_rounds_of_the_chain() -> None:
    trace = hand_trace()
    visited = diagnostics.visited_rounds(trace, replay(trace, Chain()))
    # Round 0 commits 2 tokens (positions 1, 2), round 2 accepts both and ends the text.
    assert visited.tolist() == [0, 2]
    found = diagnostics.correction_ranks(trace, visited)
    assert (found.rounds, found.events, found.counts) == (2, 1, [0, 1, 0, 0])


def test_correction_outside_the_candidates() -> None:
    trace = hand_trace()
    narrow = made_trace.narrowed(trace, 2)
    found = diagnostics.correction_ranks(narrow)
    assert (found.events, found.outside, found.counts) == (3, 2, [0, 1])
    assert found.share_2_to_4 == pytest.approx(1 / 3)


def test_path_reliability_by_hand() -> None:
    found = diagnostics.reliability(hand_trace(), candidates=2, max_nodes=64)
    # Depth 1: scores 0.55 and 0.25, four rounds each; hits at rank 0 in rounds 0 and 2, none at rank 1.
    one = found.by_depth[0]
    assert one.count == [0, 0, 4, 0, 0, 4, 0, 0, 0, 0]
    assert one.hit_rate[5] == 0.5 and one.hit_rate[2] == 0.0
    assert one.mean_score[5] == pytest.approx(0.55) and one.mean_score[0] is None
    # Depth 2, three rounds: 0.4125, 0.1875, 0.06875, 0.03125; the text's are 0 1 (0.06875) in round 0, 0 0 in round 2.
    two = found.by_depth[1]
    assert two.count == [6, 3, 0, 0, 3, 0, 0, 0, 0, 0]
    assert two.hit_rate[4] == pytest.approx(1 / 3) and two.hit_rate[0] == pytest.approx(1 / 6) and two.hit_rate[1] == 0
    assert sum(found.spine.count) == 4 + 3 and sum(found.off_spine.count) == 4 + 9
    assert found.spine.hit_rate[5] == 0.5
    assert found.everything.count == [a + b for a, b in zip(one.count, two.count, strict=True)]


def test_conditional_reliability_by_hand() -> None:
    found = diagnostics.reliability(hand_trace(), candidates=4, max_nodes=64, conditional=True)
    # Depth 2 counts only below nodes on the text: one parent each in rounds 0, 1 and 2 (ranks 1, 0, 0 there).
    two = found.by_depth[1]
    assert two.count == [6, 3, 0, 0, 0, 0, 0, 3, 0, 0]
    assert two.hit_rate[7] == pytest.approx(2 / 3) and two.hit_rate[1] == pytest.approx(1 / 3) and two.hit_rate[0] == 0
    assert two.mean_score[7] == pytest.approx(0.75)


def test_scores_that_are_probabilities_lie_on_the_diagonal() -> None:
    trace = made_trace.every_position([200] * 5, seed=2, calibrated=True)
    for conditional in (False, True):
        found = diagnostics.reliability(trace, candidates=4, max_nodes=12, conditional=conditional)
        for bins in (found.by_depth[0], found.spine, found.off_spine):
            for count, score, rate in zip(bins.count, bins.mean_score, bins.hit_rate, strict=True):
                if count >= 50:
                    assert score is not None and rate is not None
                    # About 60 comparisons; 4.5 standard errors have a false alarm in 3e-4 of all seeds.
                    assert abs(rate - score) < 4.5 * np.sqrt(score * (1 - score) / count)


def test_masses_by_hand() -> None:
    found = diagnostics.masses(hand_trace(), candidates=2, max_nodes=8)
    # Rounds 0 to 2: 0.55 0.4125 0.25 0.1875 0.06875 0.03125; round 3 has one level: 0.55 0.25.
    expected = [0.55, (3 * 0.4125 + 0.25) / 4, 0.75 * 0.25, 0.75 * 0.1875, 0.75 * 0.06875, 0.75 * 0.03125, 0, 0]
    np.testing.assert_allclose(found.masses, expected, rtol=1e-6)
    assert found.threshold is None and found.width is None


def test_stopping_threshold_by_hand() -> None:
    """Costs 10 ms + 1 ms a row, slope 1 ms: the threshold after n nodes is (1 + Phi(n)) / (11 + n)."""
    rows = [1, 16, 128]
    profile = CostProfile.from_json(
        {"schema": 1, "rows": rows, "contexts": [1024], "verify_s": [[0.01 + 0.001 * row for row in rows]],
         "draft_s": None, "host_s": None, "requests": 1, "dtype": "float32"}
    )  # fmt: skip
    found = diagnostics.masses(hand_trace(), candidates=2, max_nodes=8, profile=profile)
    assert found.threshold is not None
    phi = np.concatenate(([0.0], np.cumsum(found.masses)))[:8]
    np.testing.assert_allclose(found.threshold, (1 + phi) / (11 + np.arange(8)), rtol=1e-9)
    # 0.55 > 0.091, 0.372 > 0.129, 0.188 > 0.148; 0.141 < 2.11 / 14 = 0.151.
    assert found.width == 3


def test_rank_cap_by_hand() -> None:
    found = diagnostics.rank_cap(hand_trace(), [2], caps=(1, 2, 4))
    by_cap = {row.candidates: row for row in found}
    # Ranks of the text: 0, 1 | 2, 0 | 0, 0 | 3.
    assert by_cap[1].share_beyond == pytest.approx(3 / 7)
    assert by_cap[2].share_beyond == pytest.approx(2 / 7)
    assert by_cap[4].share_beyond == 0.0
    # Two nodes are the chain of two whatever K >= 1: rounds 0 (one accepted) and 2 (all).
    assert [row.mean_committed for row in found] == [2.0] * 3
    assert by_cap[1].against_widest == 1.0


def test_rank_cap_is_the_replay_with_k() -> None:
    trace = made_trace.every_position([30, 20], seed=3)
    for row in diagnostics.rank_cap(trace, [1, 6, 20], caps=(1, 2, 40)):
        result = replay(trace, DdTree(budget=row.budget, k=row.candidates))
        assert row.mean_committed == result.mean_committed
        assert row.mean_rows == result.mean_rows
    with pytest.raises(UsageError, match="keeps 2"):
        diagnostics.rank_cap(made_trace.narrowed(trace, 2), [4], caps=(1, 8))


def test_shapes_at_equal_rows() -> None:
    trace = made_trace.every_position([30, 20], seed=4)
    found = diagnostics.shape_comparison(trace, [4])
    assert [row.shape for row in found] == ["ddtree", "medusa", "binary", "chain"]
    arms = [DdTree(budget=4), medusa(4, 4), binary(4, 4), chain(4, 4)]
    assert [row.mean_committed for row in found] == [replay(trace, arm).mean_committed for arm in arms]


def prefix_closed(universe: list[tuple[int, ...]], size: int) -> Iterator[set[tuple[int, ...]]]:
    for picked in itertools.combinations(universe, size):
        chosen = set(picked)
        if all(len(path) == 1 or path[:-1] in chosen for path in chosen):
            yield chosen


@pytest.mark.parametrize("budget", [1, 2, 3, 4])
def test_regret_by_brute_force(budget: int) -> None:
    """All prefix-closed trees over K = 2: the best for the text, and the sharpest bound among the best."""
    trace = hand_trace()
    accepted, plug_in, bounds, hindsight = [], [], [], []
    for index in range(4):
        depth = int(trace.max_depth()[index])
        text = trace.realised(index)[:depth].tolist()
        ids = trace.rounds.ids[index]
        universe = [path for d in range(1, depth + 1) for path in itertools.product(range(2), repeat=d)]
        score = {path: float(np.prod([[P1, P2][d][rank] for d, rank in enumerate(path)])) for path in universe}
        law = {
            path: float([int(ids[d, rank]) for d, rank in enumerate(path)] == text[: len(path)]) for path in universe
        }
        size = min(budget, len(universe))
        trees = list(prefix_closed(universe, size))
        plugged = set(sorted(universe, key=lambda path: (-score[path], path))[:size])
        reached = sum(law[path] for path in plugged)
        best = max(sum(law[path] for path in tree) for tree in trees)
        winners = [tree for tree in trees if sum(law[path] for path in tree) == best]
        accepted.append(reached)
        plug_in.append(best - reached)
        bounds.append(min(sum(abs(law[path] - score[path]) for path in tree ^ plugged) for tree in winners))
        hindsight.append(min(budget, len(text)) - reached)
    found = regret.regret(trace, budget, candidates=2)
    assert found.accepted == pytest.approx(np.mean(accepted))
    assert found.plug_in == pytest.approx(np.mean(plug_in))
    assert found.hindsight == pytest.approx(np.mean(hindsight))
    assert found.bound == pytest.approx(np.mean(bounds), rel=1e-6)
    assert found.bound >= found.plug_in
    assert found.share_without == np.mean(np.array(plug_in) == 0)


def test_regret_bound_holds_on_many_rounds() -> None:
    trace = made_trace.every_position([60, 60], seed=5)
    for budget in (1, 5, 20):
        found = regret.regret(trace, budget, candidates=6)
        assert found.plug_in is not None and found.bound is not None and found.hindsight is not None
        assert 0 < found.plug_in <= found.bound
        assert found.plug_in <= found.hindsight


def test_allocation_by_brute_force() -> None:
    trace = made_trace.every_position([12], seed=6)
    forest = Nursery(trace).get(3, 12)
    for picks in ([0, 3, 5], [1, 1, 8], [7, 2, 9]):
        batch = [forest[index] for index in picks]
        total = 6
        splits = [split for split in itertools.product(range(total + 1), repeat=3) if sum(split) <= total]

        def accepted(split: tuple[int, ...], batch: list = batch) -> int:  # type: ignore[type-arg]
            return sum(int(grown.accepted[min(n, len(grown.gains))]) for grown, n in zip(batch, split, strict=True))

        def mass(split: tuple[int, ...], batch: list = batch) -> float:  # type: ignore[type-arg]
            return sum(float(grown.gains[:n].sum()) for grown, n in zip(batch, split, strict=True))

        assert regret.best_split(batch, total) == max(map(accepted, splits))
        full = [
            split
            for split in splits
            if sum(split) == total and all(n <= len(g.gains) for n, g in zip(split, batch, strict=True))
        ]
        assert regret.global_best_first(batch, total) == accepted(max(full, key=mass))


def test_equal_scores_go_to_the_earlier_request() -> None:
    tree = DraftTree(
        np.array([-1, 0, 1], np.int32), np.arange(3), np.arange(3, dtype=np.int32), np.zeros(3, np.int32), np.zeros(3)
    )
    gains = np.array([0.9, 0.5])
    hit = GrownRound(tree, gains, np.array([0, 1, 2], np.int32), np.arange(3))
    miss = GrownRound(tree, gains, np.zeros(3, np.int32), np.zeros(1, np.int64))
    # All 60 first nodes, then 30 of the 60 second ones.
    assert regret.global_best_first([hit] * 30 + [miss] * 30, 90) == 60
    assert regret.global_best_first([miss] * 30 + [hit] * 30, 90) == 30


def test_shared_allocation_of_random_batches() -> None:
    trace = made_trace.every_position([60, 60], seed=7, calibrated=True)
    found = regret.shared_allocation(trace, requests=8, nodes_per_request=2, batches=50, seed=1)
    assert 0 < found.uniform < found.hindsight
    assert found.shared < found.hindsight
    assert found.shared_gain == pytest.approx(found.shared / found.uniform - 1)
    assert found == regret.shared_allocation(trace, requests=8, nodes_per_request=2, batches=50, seed=1)
    # Scores are probabilities here and rounds differ in sharpness, so sharing by score beats equal shares.
    assert found.shared_gain is not None and found.shared_gain > 0
    with pytest.raises(UsageError, match="at least 1"):
        regret.shared_allocation(trace, requests=0, nodes_per_request=2)
    with pytest.raises(UsageError, match="no drafted round"):
        regret.shared_allocation(made_trace.every_position([1]), requests=2, nodes_per_request=2)


def test_a_batch_of_one_is_its_own_tree() -> None:
    trace = made_trace.every_position([20], seed=8)
    found = regret.shared_allocation(trace, requests=1, nodes_per_request=5, batches=20)
    assert found.uniform == found.shared == found.hindsight


def test_nothing_to_look_at() -> None:
    trace = made_trace.every_position([1])
    parts = [
        diagnostics.correction_ranks(trace), diagnostics.reliability(trace), diagnostics.masses(trace),
        *diagnostics.rank_cap(trace, [4]), *diagnostics.shape_comparison(trace, [4]), regret.regret(trace, 4),
    ]  # fmt: skip
    text = json.dumps([asdict(part) for part in parts], allow_nan=False)
    assert '"share_2_to_4": null' in text and '"mean_committed": null' in text
