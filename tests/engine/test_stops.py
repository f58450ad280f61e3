"""Where a text ends: end tokens, max_tokens, the token of prefill, and degenerate blocks and trees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoding import SOLO, greedy_wanted, knowing, policy_case, random_drafter, run
from families import family
from scripted import PROMPT, Play
from stepping import submit

from draftwood.engine import Engine, EngineConfig, Request, SamplingParams
from draftwood.policy import make_policy

TEXT = [int(token) for token in np.random.default_rng(5).integers(10, 60, 48)]
END, OTHER_END = 61, 62
POLICIES = [("ar", {}), ("chain", {}), ("ddtree", {"budget": 1}), ("ddtree", {"budget": 24})]
each_policy = pytest.mark.parametrize(("policy", "options"), POLICIES, ids=["ar", "chain", "ddtree1", "ddtree24"])


def assert_counts(request: Request) -> None:
    """The token of prefill belongs to no round; all others to exactly one."""
    assert sum(record.committed for record in request.rounds) == len(request.token_ids) - 1
    assert all(1 <= record.committed <= record.accepted + 1 <= record.rows for record in request.rounds)


@each_policy
@pytest.mark.parametrize("sure", [False, True])
def test_every_cap_is_met_exactly(policy: str, options: dict[str, Any], sure: bool) -> None:
    play = Play(sure=sure)
    requests = [play.submit(TEXT, policy, max_tokens=cap, end_ids=frozenset(), **options) for cap in range(1, 41)]
    play.finish()
    for cap, request in enumerate(requests, start=1):
        assert (request.token_ids, request.finish_reason) == (TEXT[:cap], "length")
        assert_counts(request)
        result = play.engine.output(request)
        assert result.token_ids == TEXT[:cap] and result.prompt_tokens == len(PROMPT)


@each_policy
@pytest.mark.parametrize("sure", [False, True])
def test_the_first_end_token_ends_the_text_wherever_it_stands(policy: str, options: dict[str, Any], sure: bool) -> None:
    play = Play(sure=sure)
    requests = []
    for at in range(20):
        # A second end token and more text follow in the same block.
        script = [*TEXT[:at], OTHER_END if at % 2 else END, TEXT[at], END, *TEXT[at:]]
        ends = frozenset({END, OTHER_END})
        requests.append(play.submit(script, policy, dice=at, end_ids=ends, **options))
    play.finish()
    for at, request in enumerate(requests):
        assert request.token_ids == [*TEXT[:at], OTHER_END if at % 2 else END]
        assert request.finish_reason == "stop"
        assert_counts(request)
    if sure and policy == "chain":  # accepted drafts behind the end are the policy's view, not the user's
        assert any(record.accepted + 1 > record.committed for request in requests for record in request.rounds)


@each_policy
def test_the_first_event_in_the_text_wins(policy: str, options: dict[str, Any]) -> None:
    """Block [10, 11, END, 20]: a cap of 5 gives `stop`, 3 gives `stop` with the end token, 2 gives `length`."""
    for cap, expected, reason in ((5, [10, 11, END], "stop"), (3, [10, 11, END], "stop"), (2, [10, 11], "length")):
        play = Play(sure=True)
        request = play.submit([10, 11, END, 20, 21], policy, max_tokens=cap, end_ids=frozenset({END}), **options)
        play.finish()
        assert (request.token_ids, request.finish_reason) == (expected, reason)


@each_policy
def test_an_end_token_from_prefill_gives_no_rounds(policy: str, options: dict[str, Any]) -> None:
    play = Play()
    request = play.submit([END, *TEXT], policy, end_ids=frozenset({END}), **options)
    play.finish()
    result = play.engine.output(request)
    assert (result.token_ids, result.finish_reason, result.text, result.rounds) == ([END], "stop", "", [])
    assert result.mean_committed is None and result.tokens_per_s is None
    assert play.target.calls == 1 and play.drafter.asked == []


@each_policy
def test_one_token_costs_neither_a_draft_nor_a_round(policy: str, options: dict[str, Any]) -> None:
    play = Play()
    request = play.submit(TEXT, policy, max_tokens=1, end_ids=frozenset(), **options)
    play.finish()
    assert (request.token_ids, request.finish_reason, request.rounds) == (TEXT[:1], "length", [])
    assert play.target.calls == 1 and play.drafter.asked == []


def test_the_last_token_is_not_drafted_for() -> None:
    play = Play(sure=True)
    request = play.submit(TEXT, "ddtree", budget=24, max_tokens=2, end_ids=frozenset())
    play.finish()
    assert request.token_ids == TEXT[:2] and play.drafter.asked == []
    assert [(record.rows, record.drafted) for record in request.rounds] == [(1, False)]


def test_trees_are_no_deeper_than_what_may_still_be_delivered() -> None:
    play = Play(sure=True)
    request = play.submit(TEXT, "chain", max_tokens=5, end_ids=frozenset())
    play.finish()
    assert [(record.rows, record.committed) for record in request.rounds] == [(4, 4)]


def test_budget_zero_beside_trees_is_a_plain_step() -> None:
    play = Play()
    plain = play.submit(TEXT, "ddtree", budget=0, max_tokens=30, end_ids=frozenset())
    tree = play.submit(TEXT, "ddtree", budget=24, max_tokens=30, end_ids=frozenset(), dice=1)
    play.finish()
    assert plain.token_ids == tree.token_ids == TEXT[:30]
    assert {(record.rows, record.committed, record.drafted) for record in plain.rounds} == {(1, 1, False)}
    assert {asked.request for asked in play.drafter.asked} == {tree.id}


@pytest.mark.parametrize("block_size", range(1, 9))
@pytest.mark.parametrize("case", ["chain", "ddtree7", "ddtree64"])
def test_every_block_size(case: str, block_size: int) -> None:
    made = family("qwen3", "float64")
    (wanted,) = greedy_wanted("qwen3", "float64", SOLO)
    drafter = knowing()
    engine = Engine(made.target, drafter)
    options = SamplingParams(len(wanted.text), block_size=block_size, end_ids=frozenset())
    request = submit(engine, wanted.prompt, policy_case(case), options)
    drafter.know(request.id, [*wanted.prompt, *wanted.text], 0)
    while engine.loop.step():
        engine.check_integrity()
    assert request.token_ids == wanted.text
    assert max(record.committed for record in request.rounds) <= block_size
    assert {asked.block_size for asked in drafter.asked} == ({block_size} if block_size > 1 else set())
    assert all(record.drafted == (block_size > 1) for record in request.rounds[:-1])


def test_more_candidates_than_the_vocabulary_has(tmp_path: Path) -> None:
    made = family("llama", "float64")
    (wanted,) = greedy_wanted("llama", "float64", SOLO)
    rounds = []
    for candidates in (64, 1024):
        engine = Engine(made.target, random_drafter(tmp_path / str(candidates), made))
        policy = make_policy("ddtree", budget=128, candidates=candidates)
        request = submit(engine, wanted.prompt, policy, SamplingParams(20, end_ids=frozenset()))
        while engine.loop.step():
            engine.check_integrity()
        assert request.token_ids == wanted.text[:20]
        rounds.append(request.rounds)
    assert rounds[0] == rounds[1]


def test_a_budget_above_the_nodes_that_exist_reports_those_that_exist() -> None:
    play = Play(block_size=3)  # 16 candidates, 2 depths: 16 + 256 nodes
    request = play.submit(TEXT, "ddtree", budget=1000, max_tokens=12, end_ids=frozenset())
    play.finish()
    assert request.token_ids == TEXT[:12]
    assert request.rounds[0].rows == 1 + 16 + 256


def test_a_prompt_and_a_text_may_contain_the_mask_token(tmp_path: Path) -> None:
    made = family("llama", "float64")
    drafter = random_drafter(tmp_path, made)
    mask = drafter.config.mask_token_id
    found = None
    for seed in range(300):
        rng = np.random.default_rng(seed)
        prompt = tuple(int(token) for token in rng.integers(0, 64, 9))
        prompt = (*prompt[:4], mask, *prompt[4:])
        text, _ = made.greedy(prompt, 24)
        if mask in text[1:]:
            found = prompt, text
            break
    assert found is not None
    prompt, text = found
    for case in ("chain", "ddtree64"):
        engine = Engine(made.target, drafter)
        request = submit(engine, prompt, policy_case(case), SamplingParams(24, end_ids=frozenset()))
        while engine.loop.step():
            engine.check_integrity()
        assert request.token_ids == text and mask in request.token_ids


@pytest.mark.parametrize("name", ["mistral", "gpt_oss"])
def test_end_tokens_of_a_real_model(name: str) -> None:
    """The same stop as transformers' generate with a list of end ids."""
    made = family(name, "float32")
    (wanted,) = greedy_wanted(name, "float32", SOLO)
    ends = [wanted.text[20], wanted.text[9], wanted.text[15]]
    ids = torch.tensor([wanted.prompt])
    expected = made.reference.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=48, do_sample=False, eos_token_id=ends, pad_token_id=0
    )[0, len(wanted.prompt) :].tolist()
    drafter = knowing()
    for case in ("ar", "chain", "ddtree64"):
        engine = Engine(made.target, drafter, config=EngineConfig(prefill_chunk=5))
        request = submit(engine, wanted.prompt, policy_case(case), SamplingParams(48, end_ids=frozenset(ends)))
        drafter.know(request.id, [*wanted.prompt, *wanted.text], 0)
        while engine.loop.step():
            engine.check_integrity()
        assert request.token_ids == expected and request.finish_reason == "stop"
    assert run(made, drafter, ["chain"], [wanted])[0].request.token_ids == wanted.text
