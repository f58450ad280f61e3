"""Verifiers against the exact law of a round: the right ones pass, biased ones do not."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from check_world import TEXTS, engine_for, units
from families import VOCAB, family

from draftwood.certify import law as certify_law
from draftwood.certify.law import (
    LawCase,
    LawSettings,
    check_gumbel,
    check_verifiers,
    record_cases,
    recursive_round,
    reduced,
    round_law,
    sample_counts,
    total_variation,
    variation_limit,
    walk_round,
)
from draftwood.core import DraftBlock, DraftTree, Verdict
from draftwood.errors import UsageError
from draftwood.tree.grow import grow
from draftwood.verify import Gumbel
from draftwood.verify.oracle import Pick, enumerate_law
from draftwood.verify.walk import verdict, visit

FEW = LawSettings(rounds=20_000)


def made_case(seed: int, vocab: int = 12, nodes: int = 6, depth: int = 3) -> LawCase:
    """A tree grown from random scores, and random target logits for its nodes."""
    rng = np.random.default_rng(seed)
    scores = np.sort(rng.dirichlet(np.full(vocab, 0.4), depth), axis=1)[:, ::-1]
    ids = np.stack([rng.permutation(vocab) for _ in range(depth)])
    block = DraftBlock(
        np.log(np.maximum(scores, 1e-9)).astype(np.float32)[None, :, None, :6],
        ids[None, :, None, :6],
        np.array([depth]),
    )
    tree = grow(block, 0, pending=3, candidates=6, max_nodes=nodes, max_depth=depth)
    return LawCase(tree, torch.from_numpy(rng.normal(scale=1.5, size=(tree.num_rows, vocab))))


def biased_round(tree: DraftTree, logits: torch.Tensor, pick: Pick, temperature: float) -> Verdict:
    """The negative control: children of a deterministic tree, best first, each accepted with min(1, p / q)."""

    def decide(row: torch.Tensor, node: int, pos: int) -> int:
        law = torch.softmax(row.double() / temperature, dim=-1).numpy()
        for child in np.flatnonzero(tree.parent == node):
            token = int(tree.token[child])
            accept = min(1.0, law[token] / float(np.exp(tree.logp[child] - tree.logp[node])))
            if pick(np.array([1.0 - accept, accept])):
                return token
        return pick(law)

    return verdict(tree, logits, visit(tree, logits, decide, 0, None), False)


def test_round_law_equals_the_enumerated_one() -> None:
    for seed in range(4):
        case = made_case(seed, vocab=6, nodes=4, depth=2)
        law = round_law(case, 0.8)
        assert sum(law.values()) == pytest.approx(1.0, abs=1e-12)
        for decide in (walk_round, recursive_round):
            exact = enumerate_law(lambda pick, by=decide, on=case: outcome(by(*on, pick, 0.8)))
            assert exact.keys() <= law.keys()
            for key, prob in law.items():
                assert exact.get(key, 0.0) == pytest.approx(prob, abs=1e-9)


def outcome(found: Verdict) -> tuple[int, int]:
    return int(found.path[-1]), found.pending


def test_crowds_follow_the_law_of_separate_runs() -> None:
    def procedure(pick: Pick) -> tuple[int, ...]:
        first = pick(np.array([1.0, 3.0]))
        return (first,) if first == 0 else (first, pick(np.array([2.0, 0.0, 2.0])))

    counts = sample_counts(procedure, 40_000, np.random.default_rng(1))
    assert sum(counts.values()) == 40_000 and set(counts) == {(0,), (1, 0), (1, 2)}
    law = enumerate_law(procedure)
    for key, prob in law.items():
        spread = np.sqrt(prob * (1 - prob) * 40_000)
        assert abs(counts[key] - prob * 40_000) < 4 * spread
    assert counts == sample_counts(procedure, 40_000, np.random.default_rng(1)), "fixed seed"
    assert sample_counts(lambda pick: 7, 5, np.random.default_rng(0)) == Counter({7: 5})


def test_total_variation_and_its_limit() -> None:
    assert total_variation({"a": 6, "c": 4}, {"a": 0.5, "b": 0.5}, 10) == pytest.approx(0.5)
    # Two cells: TV of n draws is |share - p|, whose 99.9 % quantile is that of a normal to good approximation.
    limit = variation_limit([np.array([0.5, 0.5])], 10_000, seed=3)
    assert limit == pytest.approx(3.29 * 0.005, rel=0.12)
    pooled = variation_limit([np.array([0.5, 0.5])] * 16, 10_000, seed=3)
    assert pooled < 0.6 * limit


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_right_verifiers_pass(temperature: float) -> None:
    cases = [made_case(seed) for seed in range(8)]
    checks = check_verifiers(cases, LawSettings(temperature, 20_000))
    assert [check.verifier for check in checks] == ["walk", "recursive"]
    for check in checks:
        assert check.passed and 0 < check.tv < check.limit < 0.05
        assert (check.prefixes, check.rounds, check.temperature) == (8, 20_000, temperature)
        assert 20_000 < check.committed_tokens < 80_000 and check.largest_tv >= check.tv


def test_min_p_over_q_on_a_tree_is_caught() -> None:
    (check,) = check_verifiers([made_case(seed) for seed in range(8)], FEW, {"biased": biased_round})
    assert not check.passed and check.tv > 2 * check.limit


def test_a_slightly_wrong_temperature_is_caught() -> None:
    wrong = {"cool": lambda tree, logits, pick, temperature: walk_round(tree, logits, pick, 0.9 * temperature)}
    (check,) = check_verifiers([made_case(seed) for seed in range(8)], FEW, wrong)
    assert not check.passed


def test_a_fault_at_one_prefix_of_eight_is_caught() -> None:
    cases = [made_case(seed) for seed in range(8)]

    def sometimes(tree: DraftTree, logits: torch.Tensor, pick: Pick, temperature: float) -> Verdict:
        faulty = np.array_equal(tree.token, reduced(cases[5], 1.0).tree.token)
        return (biased_round if faulty else walk_round)(tree, logits, pick, temperature)

    (check,) = check_verifiers(cases, FEW, {"sometimes": sometimes})
    assert not check.passed


def test_reduced_keeps_the_largest_and_one_cell() -> None:
    case = made_case(3, vocab=40, nodes=6)
    small = reduced(case, 0.7, cells=5)
    laws = torch.softmax(case.logits / 0.7, dim=-1).numpy()
    got = torch.softmax(small.logits / 0.7, dim=-1).numpy()
    assert got.sum(axis=1) == pytest.approx(np.ones(len(got)))
    for node in range(len(laws)):
        largest = np.sort(laws[node])[::-1][:5]
        assert np.sort(got[node][:-1])[::-1][:5] == pytest.approx(largest)
        assert np.count_nonzero(got[node][:-1]) == 5
        assert got[node][-1] == pytest.approx(1 - largest.sum())
    assert (small.tree.token < got.shape[1] - 1).all(), "no child carries the rest"
    assert np.array_equal(small.tree.parent, case.tree.parent)
    tokens = {int(new): int(old) for new, old in zip(small.tree.token, case.tree.token, strict=True)}
    node = int(small.tree.parent[1])
    child = int(small.tree.token[1])
    kept = laws[node, tokens[child]] >= np.sort(laws[node])[-5]
    assert got[node, child] == pytest.approx(laws[node, tokens[child]] if kept else 0.0)


def test_gumbel_chooser_passes_and_a_wrong_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [made_case(seed, vocab=80) for seed in range(4)]
    right = check_gumbel(cases, FEW)
    assert right.passed and right.committed_tokens == 20_000
    monkeypatch.setattr(
        certify_law, "Gumbel", lambda temperature, seed, number: Gumbel(1.1 * temperature, seed, number)
    )
    assert not check_gumbel(cases, FEW).passed


def test_recorded_cases_are_the_engines_own_rounds() -> None:
    engine = engine_for(units())
    cases = record_cases(engine, units(), count=6)
    assert len(cases) == 6
    engine.check_integrity()
    assert engine.state.pool.requests == ()
    made = family("llama", "float32")
    for number, case in enumerate(cases):
        unit = units()[number % 4]
        prefix = [*unit.prompt_ids, *TEXTS[unit.prompt_ids][:number]]
        assert case.tree.num_nodes == certify_law.LAW_BUDGET and case.logits.shape[1] == VOCAB
        # The root of the tree is the target's token behind the prefix.
        for node in range(case.tree.num_rows):
            path, at = [], node
            while at >= 0:
                path.append(int(case.tree.token[at]))
                at = int(case.tree.parent[at])
            expected = made.logits([[*prefix, *reversed(path)]])[0, -1]
            assert torch.allclose(case.logits[node], expected, atol=1e-3)


def test_bad_settings_are_named() -> None:
    with pytest.raises(UsageError, match=r"temperature 0\.0"):
        LawSettings(0.0)
    with pytest.raises(UsageError, match="rounds 0"):
        LawSettings(rounds=0)
    with pytest.raises(UsageError, match="no prefixes"):
        check_verifiers([], FEW)
    engine = engine_for(units())
    engine.state = replace(engine.state, drafter=None)
    with pytest.raises(UsageError, match="no drafter"):
        record_cases(engine, units())
