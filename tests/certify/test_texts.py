"""Texts against plain decoding: what is equal, what is a tie, what is broken."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from check_world import TEXTS, TOKENS, accept_one_more, engine_for, units, walking
from families import VOCAB, family

from draftwood.attention import SdpaBackend
from draftwood.bench.plan import BenchRow, rows_of
from draftwood.certify.reference import Reference
from draftwood.certify.texts import CheckSettings, TextCheck, compare_text, run_check
from draftwood.core import Forest, Sampling, Verdicts
from draftwood.engine import Engine
from draftwood.engine.schedule import Job
from draftwood.errors import NonFiniteLogitsError, UsageError
from draftwood.models.hf import HFTarget
from draftwood.prompts.units import Unit

GREEDY = Sampling()
ROWS = rows_of(["chain", "ddtree"], [12])
TREE = [row for row in ROWS if row.policy == "ddtree"]


def check(
    engine: Engine, rows: object = TREE, prompts: tuple[Unit, ...] | None = None, **settings: object
) -> TextCheck:
    how = CheckSettings(TOKENS, **settings)  # type: ignore[arg-type]
    return run_check(engine, rows, prompts or units(), how)[-1]  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_healthy_engine_is_identical_to_transformers(dtype: str, temperature: float) -> None:
    ended: list[None] = []
    settings = CheckSettings(TOKENS, temperature, seed=5, batch=3)
    checks = run_check(engine_for(units(), dtype), ROWS, units(), settings, lambda: ended.append(None))
    assert [one.policy for one in checks] == ["ar", "chain", "ddtree 12"]
    for one in checks:
        assert (one.verdict, one.prompts, one.near_ties, one.different) == ("identical", 4, 0, 0)
        assert (one.positions, one.differences, one.temperature) == (4 * TOKENS, (), temperature)
    assert len(ended) == 4 * 4
    if temperature == 0 and dtype == "float32":
        assert checks[2].mean_committed is not None and checks[2].mean_committed > 1.5


def test_reference_is_transformers_own_generation() -> None:
    reference = Reference(family("llama", "float32").target)
    for unit in units():
        assert reference.decode(unit.prompt_ids, TOKENS, frozenset(), GREEDY) == TEXTS[unit.prompt_ids]
    ids = units()[0].prompt_ids
    text = TEXTS[ids]
    assert reference.decode(ids, TOKENS, frozenset({text[6]}), GREEDY) == text[: text.index(text[6]) + 1]
    sampling = Sampling(1.0, 3)
    assert reference.decode(ids, TOKENS, frozenset(), sampling) == family("llama", "float32").sampled(
        ids, TOKENS, sampling
    )


def test_reference_stops_at_the_context_limit_like_the_engine() -> None:
    made = family("llama", "float32")
    limit = made.target.spec.context_limit
    unit = Unit("toy", "long", tuple(int(token) for token in np.arange(limit - 3) % VOCAB))
    assert len(Reference(made.target).decode(unit.prompt_ids, TOKENS, frozenset(), GREEDY)) == 4
    assert check(Engine(made.target), [BenchRow("ar", "ar")], (unit,)).verdict == "identical"


def test_forced_scores_by_hand() -> None:
    made, unit = family("llama", "float32"), units()[0]
    text = TEXTS[unit.prompt_ids][:6]
    output = [*text[:3], (text[3] + 1) % VOCAB, *text[4:]]
    for sampling in (GREEDY, Sampling(0.7, 11)):
        forced = Reference(made.target).forced(unit.prompt_ids, output, sampling)
        for index in range(len(output)):
            row = made.logits([[*unit.prompt_ids, *output[:index]]])[0, -1]
            best = int(row.argmax())
            if not sampling.greedy:
                best = family("llama", "float32").sampled((*unit.prompt_ids, *output[:index]), 1, sampling)[0]
            assert (forced.behind[index] == 0.0) == (best == output[index])
            assert forced.top_logit[index] == pytest.approx(float(row.max()), rel=1e-4)
            if sampling.greedy:
                top = row.topk(2).values
                assert forced.gap[index] == pytest.approx(float(top[0] - top[1]), abs=1e-4)


@pytest.mark.parametrize("reference", ["native", "ar"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_verifier_is_different(reference: str, temperature: float) -> None:
    found = check(walking(engine_for(units()), accept_one_more), reference=reference, temperature=temperature)
    assert found.verdict == "different" and found.different >= 3
    first = found.differences[0]
    assert first.gap is not None and first.tolerance is not None and first.gap > first.tolerance
    assert first.token != first.expected and first.reason == "top-two gap is no tie"


def test_tree_mask_bug_is_different(monkeypatch: pytest.MonkeyPatch) -> None:
    def everything(forest: Forest) -> np.ndarray:
        return np.full((len(forest.parent), 1), -1, np.int64)

    monkeypatch.setattr("draftwood.engine.round.ancestor_words", everything)
    assert check(engine_for(units())).verdict == "different"


def test_position_bug_is_different(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows_for_depths(forest: Forest, root_pos: np.ndarray) -> np.ndarray:
        return np.concatenate([at + np.arange(rows) for at, rows in zip(root_pos, forest.num_rows, strict=True)])

    monkeypatch.setattr("draftwood.engine.round.positions", rows_for_depths)
    assert check(engine_for(units())).verdict == "different"


def test_lost_last_token_is_different() -> None:
    def shorten(jobs: list[Job], forest: Forest, verdicts: Verdicts) -> Verdicts:
        for job in jobs:
            if len(job.request.token_ids) > 9:
                job.request.limits = replace(job.request.limits, max_tokens=len(job.request.token_ids) + 1)
        return verdicts

    found = check(walking(engine_for(units()), shorten))
    assert found.verdict == "different" and found.different == 4
    assert {(one.token, one.reason, one.gap) for one in found.differences} == {(None, "the output ends early", None)}


class Twins:
    """A target whose token `twin` has the head row of the token at output position `INDEX` of the first prompt.

    Their logits are equal wherever one of them leads, so that the choice between them is a tie; plain decoding takes
    the lower id.
    """

    INDEX = 4

    def __init__(self, prompts: tuple[Unit, ...]) -> None:
        reference = copy.deepcopy(family("llama", "float32").reference)
        used = {token for unit in prompts for token in TEXTS[unit.prompt_ids]}
        self.token = TEXTS[prompts[0].prompt_ids][self.INDEX]
        self.twin = max(set(range(VOCAB)) - used)
        assert self.twin > self.token
        with torch.no_grad():
            reference.lm_head.weight[self.twin] = reference.lm_head.weight[self.token]
        self.target = HFTarget(reference, SdpaBackend(), name="twins")

    def take_twin(self, prompts: set[int]) -> Callable[[list[Job], Forest, Verdicts], Verdicts]:
        """Once for each of the first prompts, by their lengths, decides for the twin."""
        done: set[int] = set()

        def change(jobs: list[Job], forest: Forest, verdicts: Verdicts) -> Verdicts:
            for tree, job in enumerate(job for job in jobs if job.judged):
                request = job.request
                if request.id in done or len(request.prompt_ids) not in prompts:
                    continue
                if verdicts.pending[tree] == self.token:
                    verdicts.pending[tree] = self.twin
                    done.add(request.id)
            return verdicts

        return change


@cache
def many() -> tuple[Unit, ...]:
    return units(21, 9)


def test_planted_tie_is_a_near_tie() -> None:
    twins = Twins(many())
    engine = walking(engine_for(many(), target=twins.target), twins.take_twin({len(many()[0].prompt_ids)}))
    found = check(engine, prompts=many())
    assert (found.verdict, found.near_ties, found.different) == ("near-tie", 1, 0)
    (tie,) = found.differences
    assert (tie.prompt_id, tie.token, tie.expected, tie.gap) == ("p0", twins.twin, twins.token, 0.0)
    prompt = many()[0].prompt_ids
    largest = float(family("llama", "float32").logits([[*prompt, *TEXTS[prompt][: tie.index]]])[0, -1].max())
    assert largest > 1.0 and tie.tolerance == pytest.approx(1e-4 * largest, rel=1e-4)


def test_too_many_ties_are_different() -> None:
    """More than 5 % of the prompts in float32: 2 of 21 are too many."""
    twins = Twins(many())
    lengths = {len(unit.prompt_ids) for unit in many() if twins.token in TEXTS[unit.prompt_ids][:8]}
    assert len(lengths) >= 2
    engine = walking(engine_for(many(), target=twins.target), twins.take_twin(lengths))
    found = check(engine, [BenchRow("ar", "ar")], prompts=many())
    assert found.near_ties >= 2 and found.different == 0 and found.verdict == "different"


def test_fault_behind_a_tie_is_no_tie() -> None:
    twins, unit = Twins(many()), many()[0]
    reference = Reference(twins.target)
    plain = reference.decode(unit.prompt_ids, TOKENS, frozenset(), GREEDY)
    shared = plain[: Twins.INDEX]
    rest = reference.decode([*unit.prompt_ids, *shared, twins.twin], 10, frozenset(), GREEDY)
    good = compare_text("float32", reference, unit, [*shared, twins.twin, *rest], plain, GREEDY)
    assert good is not None and good.verdict == "near-tie"
    rest[6] = (rest[6] + 1) % VOCAB
    bad = compare_text("float32", reference, unit, [*shared, twins.twin, *rest], plain, GREEDY)
    assert bad is not None and bad.verdict == "different" and f"at {Twins.INDEX + 7} is not" in bad.reason
    third = next(token for token in range(VOCAB) if token not in (twins.token, twins.twin))
    wrong = compare_text("float32", reference, unit, [*shared, third], plain, GREEDY)
    assert wrong is not None and wrong.verdict == "different", "a token that is not one of the tied ones"
    strict = compare_text("float64", reference, unit, [*shared, twins.twin, *rest], plain, GREEDY)
    assert strict is not None and strict.verdict == "different" and strict.tolerance == 0.0


def test_planted_tie_of_a_sampled_text() -> None:
    """Equal logits are no tie under noise, which differs between the twins; two equal scores are."""
    made, unit, sampling = family("llama", "float32"), units()[0], Sampling(1.0, 2)
    reference = Reference(made.target)
    plain = reference.decode(unit.prompt_ids, 8, frozenset(), sampling)
    forced = reference.forced(unit.prompt_ids, plain, sampling)
    assert not forced.behind.any() and (forced.gap > 0).all()
    output = [*plain[:5], (plain[5] + 1) % VOCAB, *plain[6:]]
    found = compare_text("float32", reference, unit, output, plain, sampling)
    assert found is not None and found.verdict == "different" and found.gap == pytest.approx(forced.gap[5])


def test_bad_settings_are_named() -> None:
    for wrong, message in (
        ({"max_tokens": 0}, "max_tokens 0"),
        ({"batch": 0}, "batch 0"),
        ({"reference": "eager"}, "'eager': expected native or ar"),
        ({"temperature": -1.0}, "temperature -1.0"),
    ):
        with pytest.raises(UsageError, match=message):
            CheckSettings(**wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no prompts"):
        run_check(engine_for(units()), TREE, [], CheckSettings())
    engine = engine_for(units())
    engine.state.target = type("Foreign", (), {"spec": engine.state.target.spec})()  # type: ignore[assignment]
    with pytest.raises(UsageError, match="no attention of its own"):
        run_check(engine, TREE, units(), CheckSettings())


def test_a_prompt_whose_numbers_are_not_finite_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = units()
    made = engine_for(asked)

    def broken(*args: object, **kwargs: object) -> object:
        error = NonFiniteLogitsError("position 7: nan")
        error.prompt = 1
        raise error

    monkeypatch.setattr(made, "generate", broken)
    rows = rows_of(["chain"], [])[1:]
    with pytest.raises(
        NonFiniteLogitsError,
        match=rf"^policy chain, set {asked[1].set_name}, prompt {asked[1].prompt_id}: position 7: nan$",
    ):
        run_check(made, rows, asked, CheckSettings(max_tokens=TOKENS, batch=3))
