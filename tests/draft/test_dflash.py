"""The DFlash forward: golden vectors, properties, batches, queues."""

from __future__ import annotations

from pathlib import Path

import drafter_pair as pair
import numpy as np
import pytest
import torch

from draftwood.batch import kv_index
from draftwood.draft import Committed, Drafter, DraftRequest, TargetHead
from draftwood.errors import UsageError

DOUBLE = torch.float64
GOLDEN_ROW_1 = [1.421675, 0.434912, -1.431463, -2.115660, -0.949247, -0.657952]
GOLDEN_ROW_3 = [1.595920, 0.267391, -2.047182, -2.259755, -0.873405, -0.721660]


def test_fill_probe() -> None:
    expected = torch.tensor([0.261269, 0.190661, 0.708948, 0.125665])
    torch.testing.assert_close(pair.fill([4], 0, 0, 1), expected, atol=1e-6, rtol=0)


def check_golden(states: torch.Tensor) -> None:
    assert states.shape == (4, 32)
    torch.testing.assert_close(states[1, :6], torch.tensor(GOLDEN_ROW_1), atol=1e-4, rtol=0)
    torch.testing.assert_close(states[3, :6], torch.tensor(GOLDEN_ROW_3), atol=1e-4, rtol=0)
    assert states.abs().sum().item() == pytest.approx(108.22118, abs=1e-3)
    assert states.sum().item() == pytest.approx(-12.21383, abs=1e-3)
    best = pair.ToyTarget().head(states).max(dim=1)
    assert best.indices.tolist() == [54, 19, 19, 19]
    torch.testing.assert_close(best.values, torch.tensor([3.52584, 3.29642, 3.58777, 3.56416]), atol=1e-4, rtol=0)


def test_golden_vector_in_one_shot(tmp_path: Path) -> None:
    drafter = pair.tiny_drafter(tmp_path)
    pair.start(drafter, 0, pair.taps_of(7))
    check_golden(drafter.block_states([pair.ask(0, 5, 7, 4)]))


def test_golden_vector_after_an_earlier_block(tmp_path: Path) -> None:
    drafter = pair.tiny_drafter(tmp_path)
    taps = pair.taps_of(7)
    pair.start(drafter, 0, taps[:5])
    pair.scores(drafter, [pair.ask(0, 9, 5, 4)], 3)
    pair.feed(drafter, 0, taps[5:])
    check_golden(drafter.block_states([pair.ask(0, 5, 7, 4)]))
    drafter.pool.check_integrity()
    assert drafter.pool.prefix_len(0) == 7


def test_scores_are_log_probabilities_of_the_golden_logits(tmp_path: Path) -> None:
    drafter = pair.tiny_drafter(tmp_path)
    pair.start(drafter, 0, pair.taps_of(7))
    request = [pair.ask(0, 5, 7, 4)]
    block = pair.scores(drafter, request, 5)
    logp = torch.log_softmax(pair.ToyTarget().head(drafter.block_states(request)[1:]).double(), dim=1)
    best = logp.topk(5, dim=1)
    assert block.ids.shape == (1, 3, 1, 5) and block.depths.tolist() == [3]
    assert block.ids.dtype == np.int64 and block.logp.dtype == np.float32
    assert block.ids[0, :, 0, 0].tolist() == [19, 19, 19]
    assert block.ids[0, :, 0].tolist() == best.indices.tolist()
    np.testing.assert_allclose(block.logp[0, :, 0], best.values.numpy(), atol=1e-5)


def test_as_many_candidates_as_tokens(tmp_path: Path) -> None:
    drafter = pair.tiny_drafter(tmp_path)
    pair.start(drafter, 0, pair.taps_of(7))
    request = [pair.ask(0, 5, 7, 4)]
    whole, beyond = pair.scores(drafter, request, 64), pair.scores(drafter, request, 1000)
    assert beyond.ids.shape == (1, 3, 1, 64)
    np.testing.assert_array_equal(beyond.ids, whole.ids)
    np.testing.assert_array_equal(np.sort(whole.ids, axis=3)[0, 0, 0], np.arange(64))
    np.testing.assert_allclose(np.exp(whole.logp).sum(axis=3), 1.0, atol=1e-5)
    assert (np.diff(whole.logp, axis=3) <= 0).all() and (whole.logp <= 0).all()


def states_with_slot(drafter_folder: Path, token: int, **changes: object) -> torch.Tensor:
    """Golden states with the token of block slot 3 replaced."""

    class Edited(pair.ToyTarget):
        def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
            assert token_ids.tolist() == [5, 63, 63, 63]
            edited = token_ids.clone()
            edited[3] = token
            return super().embed(edited)

    drafter = pair.tiny_drafter(drafter_folder, target=Edited(), **changes)
    pair.start(drafter, 0, pair.taps_of(7))
    return drafter.block_states([pair.ask(0, 5, 7, 4)])


@pytest.mark.parametrize(
    "changes, moves",
    [
        ({}, True),
        ({"is_causal": True}, False),
        ({"dflash_config": {"mask_token_id": 63, "target_layer_ids": [1, 3, 5], "causal_head": True}}, False),
        ({"layer_types": ["sliding_attention"] * 2, "sliding_window": 100}, False),
        ({"layer_types": ["sliding_attention"] * 2, "sliding_window": 100, "is_causal": False}, True),
    ],
)
def test_later_slots_move_earlier_rows_only_without_causality(
    tmp_path: Path, changes: dict[str, object], moves: bool
) -> None:
    usual, edited = states_with_slot(tmp_path, 63, **changes), states_with_slot(tmp_path, 20, **changes)
    moved = (usual - edited)[1].abs().max().item()
    assert (moved > 0.1) if moves else (moved == 0.0)
    assert (usual - edited)[3].abs().max().item() > 0.1


def test_slot_three_moves_row_one_as_in_the_specification(tmp_path: Path) -> None:
    usual = states_with_slot(tmp_path, 63)
    moved = max((usual - states_with_slot(tmp_path, token))[1].abs().max().item() for token in range(63))
    assert moved > 0.34


def test_order_of_context_rows_does_not_matter_but_positions_do(tmp_path: Path) -> None:
    drafter = pair.tiny_drafter(tmp_path, dtype=DOUBLE)
    taps = pair.taps_of(7, dtype=DOUBLE)
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    pair.start(drafter, 0, taps)
    pair.start(drafter, 1, taps[order])
    usual = drafter.block_states([pair.ask(0, 5, 7, 4)])
    moved = drafter.block_states([pair.ask(1, 5, 7, 4)])
    rows_kv = torch.from_numpy(kv_index(drafter.pool.prefix(0)))
    with torch.inference_mode():
        for layer in range(2):
            for tensor in (drafter.pool.k(layer), drafter.pool.v(layer)):
                tensor[rows_kv] = tensor[rows_kv[order]]  # rotated keys: each row takes its position along
    permuted = drafter.block_states([pair.ask(0, 5, 7, 4)])
    torch.testing.assert_close(permuted, usual, atol=1e-6, rtol=0)
    assert (moved - usual).abs().max() > 1e-3


def test_block_input_is_the_pending_token_and_masks(tmp_path: Path) -> None:
    target = pair.ToyTarget()
    drafter = pair.tiny_drafter(tmp_path, target=target)
    pair.start(drafter, 3, pair.taps_of(7))
    pair.start(drafter, 8, pair.taps_of(2))
    pair.scores(drafter, [pair.ask(8, 11, 2, 2), pair.ask(3, 63, 7, 4)], 2)
    assert target.embedded[-1].tolist() == [11, 63, 63, 63, 63, 63]


def filled_drafter(folder: Path, **changes: object) -> tuple[pair.DFlashDrafter, list[DraftRequest]]:
    drafter = pair.tiny_drafter(folder, dtype=DOUBLE, **changes)
    lengths, sizes = [9, 1, 30, 4], [4, 2, 3, 4]
    for request, length in enumerate(lengths):
        pair.start(drafter, request, pair.taps_of(length, 200 + request, DOUBLE))
    return drafter, [pair.ask(r, 5 + r, lengths[r], sizes[r]) for r in range(4)]


MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}


@pytest.mark.parametrize("changes", [{}, {"is_causal": True}, MIXED, {**MIXED, "is_causal": False}])
def test_a_batch_equals_each_request_alone(tmp_path: Path, changes: dict[str, object]) -> None:
    drafter, requests = filled_drafter(tmp_path, **changes)
    together = drafter.block_states(requests).split([request.block_size for request in requests])
    block = pair.scores(drafter, requests, 6)
    assert block.logp.shape == (4, 3, 1, 6) and block.depths.tolist() == [3, 1, 2, 3]
    for index, request in enumerate(requests):
        alone, _ = filled_drafter(tmp_path, **changes)
        torch.testing.assert_close(together[index], alone.block_states([request]), atol=1e-9, rtol=0)
        solo = pair.scores(alone, [request], 6)
        depth = request.block_size - 1
        np.testing.assert_array_equal(block.ids[index, :depth], solo.ids[0])
        np.testing.assert_allclose(block.logp[index, :depth], solo.logp[0], atol=1e-6)
        assert (block.logp[index, depth:] == -np.inf).all() and (block.ids[index, depth:] == 0).all()


def test_a_shorter_block_is_not_the_start_of_a_longer_one(tmp_path: Path) -> None:
    drafter, _ = filled_drafter(tmp_path)
    states = [drafter.block_states([pair.ask(0, 5, 9, size)])[:2] for size in (2, 4)]
    assert (states[0] - states[1]).abs().max() > 1e-3


def test_queued_commits_equal_immediate_ones(tmp_path: Path) -> None:
    drafter = pair.tiny_drafter(tmp_path, dtype=DOUBLE)
    taps = {request: pair.taps_of(24, 300 + request, DOUBLE) for request in range(2)}
    for request in (0, 1, 10, 11):
        drafter.open(request, np.zeros(5, np.int64), 24)
    for start in range(0, 24, 4):
        pair.feed_all(drafter, {request: taps[request][start : start + 4] for request in (0, 1)})
        pair.start(drafter, 20 + start, taps[0][:1])
        drafter.close(20 + start)
    queued = drafter.block_states([pair.ask(0, 5, 24, 4), pair.ask(1, 6, 24, 4)])
    for request in (10, 11):
        for start, stop in ((0, 1), (1, 7), (7, 20), (20, 24)):
            pair.feed(drafter, request, taps[request - 10][start:stop])
            drafter.flush()
    immediate = drafter.block_states([pair.ask(10, 5, 24, 4), pair.ask(11, 6, 24, 4)])
    torch.testing.assert_close(queued, immediate, atol=1e-9, rtol=0)


def test_commit_copies_the_taps(tmp_path: Path) -> None:
    drafter = pair.tiny_drafter(tmp_path)
    buffer = pair.taps_of(7)
    pair.start(drafter, 0, buffer)
    buffer.zero_()
    check_golden(drafter.block_states([pair.ask(0, 5, 7, 4)]))


def test_a_long_queue_is_projected_without_a_draft(tmp_path: Path) -> None:
    drafter = pair.tiny_drafter(tmp_path)
    drafter.open(0, np.zeros(800, np.int64), 800)
    for _ in range(4):
        pair.feed(drafter, 0, pair.taps_of(200))
    assert drafter.pool.prefix_len(0) == 600 and drafter.context_len(0) == 800


def test_requests_over_reused_slots_equal_their_solo_runs(tmp_path: Path) -> None:
    """Trap 21: nothing of an earlier owner of the rows, or of a neighbour, remains."""
    rng = np.random.default_rng(7)
    drafter = pair.tiny_drafter(tmp_path, dtype=DOUBLE)
    live: dict[int, int] = {}
    for request in range(20):
        if len(live) == 4:
            gone = int(rng.choice(list(live)))
            drafter.close(gone)
            del live[gone]
        live[request] = int(rng.integers(1, 40))
        pair.start(drafter, request, pair.taps_of(live[request], 400 + request, DOUBLE))
        asked = [pair.ask(r, r, n, 4) for r, n in rng.permutation(list(live.items())).tolist()]
        states = drafter.block_states(asked).split(4)
        drafter.pool.check_integrity()
        for one, state in zip(asked, states, strict=True):
            solo = pair.tiny_drafter(tmp_path, dtype=DOUBLE)
            pair.start(solo, one.request, pair.taps_of(one.context_len, 400 + one.request, DOUBLE))
            torch.testing.assert_close(state, solo.block_states([one]), atol=1e-9, rtol=0)
    for request in live:
        drafter.close(request)
    drafter.close(999)
    drafter.pool.check_integrity()
    assert drafter.pool.free_rows == drafter.pool.kv_rows


def window_states(folder: Path, window: int | None, **changes: object) -> torch.Tensor:
    if window is not None:
        changes |= {"layer_types": ["sliding_attention"] * 2, "sliding_window": window}
    drafter = pair.tiny_drafter(folder, dtype=DOUBLE, **changes)
    pair.start(drafter, 0, pair.taps_of(20, dtype=DOUBLE))
    return drafter.block_states([pair.ask(0, 5, 20, 4)])


def test_a_window_cuts_and_a_wide_one_does_not(tmp_path: Path) -> None:
    """Trap 39, in the causal reading of sliding layers and in the bidirectional one."""
    for causal in (True, False):
        plain = window_states(tmp_path, None, is_causal=causal)
        assert (window_states(tmp_path, 4, is_causal=causal) - plain).abs().max() > 1e-3
        torch.testing.assert_close(window_states(tmp_path, 1000, is_causal=causal), plain, atol=1e-9, rtol=0)


def test_a_window_leaves_the_nearest_positions(tmp_path: Path) -> None:
    """With window 4 block slot 0 sees 3 context rows: far ones do not matter, the nearest does."""
    states = []
    for changed in (None, 16, 17):
        drafter = pair.tiny_drafter(
            tmp_path, dtype=DOUBLE, num_hidden_layers=1, layer_types=["sliding_attention"], sliding_window=4
        )
        taps = pair.taps_of(20, dtype=DOUBLE)
        if changed is not None:
            taps[changed] += 1.0
        pair.start(drafter, 0, taps)
        states.append(drafter.block_states([pair.ask(0, 5, 20, 4)]))
    assert torch.equal(states[0], states[1])
    assert (states[0] - states[2])[0].abs().max() > 1e-6
    assert torch.equal(states[0][1:], states[2][1:])


def test_scale_multiplier_and_soft_cap(tmp_path: Path) -> None:
    plain = pair.tiny_drafter(tmp_path)
    scaled = pair.tiny_drafter(tmp_path, input_embedding_scale=2.0, output_multiplier=0.5, final_logit_softcapping=1.5)
    doubled = pair.ToyTarget()
    doubled.embedding *= 2
    by_hand = pair.tiny_drafter(tmp_path, target=doubled)
    request = [pair.ask(0, 5, 7, 4)]
    for drafter in (plain, scaled, by_hand):
        pair.start(drafter, 0, pair.taps_of(7))
    states = by_hand.block_states(request)
    torch.testing.assert_close(scaled.block_states(request), states, atol=1e-6, rtol=0)
    assert (plain.block_states(request) - states).abs().max() > 1e-3
    logits = 1.5 * torch.tanh(0.5 * doubled.head(states[1:]) / 1.5)
    best = torch.log_softmax(logits, dim=1).topk(4, dim=1)
    block = pair.scores(scaled, request, 4)
    np.testing.assert_allclose(block.logp[0, :, 0], best.values.numpy(), atol=1e-5)
    assert block.ids[0, :, 0].tolist() == best.indices.tolist()


def test_positions_stay_below_the_target_limit(tmp_path: Path) -> None:
    drafter = pair.tiny_drafter(tmp_path, target=pair.ToyTarget(context_limit=10))
    pair.start(drafter, 0, pair.taps_of(7))
    assert pair.scores(drafter, [pair.ask(0, 5, 7, 3)], 2).depths.tolist() == [2]
    with pytest.raises(UsageError, match="block of 4 at position 7: expected to end by 10"):
        pair.scores(drafter, [pair.ask(0, 5, 7, 4)], 2)


@pytest.mark.parametrize(
    "request_, message",
    [
        (pair.ask(0, 5, 7, 5), "block size 5: expected 2 to 4"),
        (pair.ask(0, 5, 7, 1), "block size 1: expected 2 to 4"),
        (pair.ask(0, 5, 8, 4), "block at 8: expected 7"),
        (pair.ask(1, 5, 7, 4), "request 1: expected one that is open"),
    ],
)
def test_unusable_requests_are_refused(tmp_path: Path, request_: DraftRequest, message: str) -> None:
    drafter = pair.tiny_drafter(tmp_path)
    pair.start(drafter, 0, pair.taps_of(7))
    with pytest.raises(UsageError, match=message):
        pair.scores(drafter, [request_], 2)


def test_no_candidates_twice_the_same_and_narrow_taps_are_refused(tmp_path: Path) -> None:
    drafter = pair.tiny_drafter(tmp_path)
    pair.start(drafter, 0, pair.taps_of(7))
    request = pair.ask(0, 5, 7, 4)
    with pytest.raises(UsageError, match="candidates 0: expected at least 1"):
        pair.scores(drafter, [request], 0)
    with pytest.raises(UsageError, match="expected distinct ones"):
        pair.scores(drafter, [request, request], 2)
    with pytest.raises(UsageError, match=r"\[7, 64\]: expected \[rows, 96\]"):
        pair.feed(drafter, 0, pair.taps_of(7)[:, :64])
    with pytest.raises(UsageError, match=r"None: expected \[rows, 96\]"):
        drafter.commit(Committed((0,), np.array([0, 7]), np.zeros(7, np.int64), None))
    assert drafter.context_len(0) == 7, "nothing was committed"


def test_scores_that_are_not_numbers_name_their_position(tmp_path: Path) -> None:
    class Broken(pair.ToyTarget):
        def head(self, hidden: torch.Tensor) -> torch.Tensor:
            logits = super().head(hidden)
            logits[1, 3] = torch.nan
            return logits

    drafter = pair.tiny_drafter(tmp_path, target=Broken())
    pair.start(drafter, 4, pair.taps_of(7))
    forest = drafter.propose([pair.ask(4, 5, 7, 4)])
    assert forest.faulty == {0: "draft scores of position 9 are not finite"}
    assert forest[0].token.tolist() == [5] and forest[0].num_nodes == 0


def test_a_request_without_context_can_be_drafted(tmp_path: Path) -> None:
    drafter = pair.tiny_drafter(tmp_path)
    drafter.open(0, np.zeros(3, np.int64), 3)
    assert pair.scores(drafter, [pair.ask(0, 5, 0, 4)], 2).depths.tolist() == [3]


def test_runs_of_head_rows_give_the_same_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, requests = filled_drafter(tmp_path)
    whole = pair.scores(drafter, requests, 5)
    monkeypatch.setattr("draftwood.draft.dflash._MAX_LOGITS", 130)
    runs = pair.scores(drafter, requests, 5)
    np.testing.assert_array_equal(whole.ids, runs.ids)
    np.testing.assert_allclose(whole.logp, runs.logp, atol=1e-6)


def test_stub_and_drafter_satisfy_the_contract(tmp_path: Path) -> None:
    def score(request: DraftRequest) -> tuple[np.ndarray, np.ndarray]:
        base = np.log(np.array([[0.5, 0.3, 0.1]] * 3))
        return np.stack([base - request.pending] * 3), np.arange(27).reshape(3, 3, 3)

    stub = pair.StubDrafter(score)
    drafters: list[Drafter] = [stub, pair.tiny_drafter(tmp_path)]
    target: TargetHead = pair.ToyTarget()
    assert target.spec.hidden_size == 32
    asked = [pair.ask(0, 0, 7, 4, candidates=2, max_nodes=30), pair.ask(1, 2, 7, 2, candidates=3)]
    for drafter in drafters:
        members = [name for name in vars(Drafter) if not name.startswith("_")]
        assert len(members) == 8 and all(hasattr(drafter, name) for name in members)
        drafter.allocate(64, 2)
        for request in (0, 1):
            drafter.open(request, np.zeros(7, np.int64), 9)
        pair.feed_all(drafter, {0: pair.taps_of(7), 1: pair.taps_of(7)})
        forest = drafter.propose(asked)
        assert len(forest) == 2 and forest.num_rows.tolist() == [1 + 2 + 4 + 8, 1 + 3]
        assert forest.token[forest.offsets[:-1]].tolist() == [0, 2] and not forest.faulty
        for request in (0, 1, 999):
            drafter.close(request)
        drafter.allocate(64, 2)
    block = stub.propose(asked).source
    assert block.logp.shape == (2, 3, 3, 3)
    np.testing.assert_allclose(block.logp[0, 2], np.log([[0.5, 0.3, 0.1]] * 3), atol=1e-6)
    assert (block.logp[1, 1:] == -np.inf).all() and block.ids[0, 2, 1].tolist() == [21, 22, 23]
