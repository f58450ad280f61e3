"""A pool too small for all: the youngest give way, compute their context again, and nobody's text tells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from decoding import knowing, policy_case, random_drafter
from families import VOCAB, Family, family
from scripted import PROMPT, Play, ScriptedTarget
from stepping import submit
from stub_drafter import KnowingDrafter

from draftwood.core import Sampling
from draftwood.draft.base import Drafter
from draftwood.engine import Engine, EngineConfig, Request, SamplingParams
from draftwood.errors import RequestError
from draftwood.policy import make_policy

PROMPT_LEN, TOKENS, COUNT = 30, 40, 6
POOLS = (48, 80, 112)
GREEDY, SEEDED = Sampling(), Sampling(1.0, seed=5)


def prompts() -> list[tuple[int, ...]]:
    rng = np.random.default_rng(8)
    return [tuple(int(token) for token in rng.integers(0, VOCAB, PROMPT_LEN)) for _ in range(COUNT)]


@pytest.fixture(scope="module", params=[GREEDY, SEEDED], ids=["greedy", "seeded"])
def texts(request: pytest.FixtureRequest) -> tuple[Sampling, list[list[int]]]:
    """Six texts by whole forwards of the reference, a token at a time."""
    made, sampling = family("llama", "float64"), request.param
    return sampling, [made.sampled(prompt, TOKENS, sampling) for prompt in prompts()]


def decoded(
    made: Family, drafter: Drafter, cases: list[str], rows: int, sampling: Sampling, known: list[list[int]]
) -> list[Request]:
    """All six at once in a pool of `rows`; the oldest that runs must never be sent away."""
    config = EngineConfig(prefill_chunk=16, max_kv_rows=rows)
    engine = Engine(made.target, drafter, config=config)
    requests = []
    for index, (prompt, text) in enumerate(zip(prompts(), known, strict=True)):
        params = SamplingParams(TOKENS, sampling.temperature, sampling.seed, end_ids=frozenset())
        requests.append(submit(engine, prompt, policy_case(cases[index % len(cases)]), params))
        if isinstance(drafter, KnowingDrafter):
            drafter.know(requests[-1].id, [*prompt, *text], index)
    while engine.state.busy:
        oldest = min((one for one in requests if not one.finished), key=lambda one: one.id)
        before = oldest.preemptions
        engine.loop.step()
        engine.check_integrity()
        assert oldest.preemptions == before and engine.state.pool.kv_rows == rows
    assert engine.state.pool.requests == () and engine.state.pool.free_rows == rows
    return requests


def assert_texts(requests: list[Request], known: list[list[int]], rows: int) -> None:
    """Whole, or as far as the pool holds one request: the last token needs no row."""
    for request, text in zip(requests, known, strict=True):
        assert request.token_ids == text[: rows - PROMPT_LEN + 1] and request.finish_reason == "length"


@pytest.mark.parametrize("rows", POOLS)
@pytest.mark.parametrize("cases", [["ar"], ["ddtree64"], ["ddtree7", "ar", "chain"]], ids=["ar", "tree", "mixed"])
def test_everybody_gets_the_text_of_a_run_alone(
    cases: list[str], rows: int, texts: tuple[Sampling, list[list[int]]]
) -> None:
    made, (sampling, known) = family("llama", "float64"), texts
    drafter = knowing()
    requests = decoded(made, drafter, cases, rows, sampling, known)
    assert_texts(requests, known, rows)
    preempted = [request for request in requests if request.preemptions]
    # A smaller pool holds one request, and no second prompt with a page for each to grow into: there they queue.
    assert bool(preempted) == (rows > 80) and requests[0].preemptions == 0
    assert drafter.taps == {}
    # A context without a hole goes on being drafted for as well as before.
    late = [request for request in preempted if request.policy.drafts]
    assert all(np.mean([one.committed for one in request.rounds]) > 1.2 for request in late)


@pytest.mark.parametrize("rows", POOLS)
def test_with_a_real_drafter(rows: int, texts: tuple[Sampling, list[list[int]]], tmp_path: Path) -> None:
    """It refuses a block that is not behind its context, so each recomputed context is whole."""
    made, (sampling, known) = family("llama", "float64"), texts
    drafter = random_drafter(tmp_path, made)
    requests = decoded(made, drafter, ["ddtree7", "chain"], rows, sampling, known)
    assert_texts(requests, known, rows)
    assert bool(sum(request.preemptions for request in requests)) == (rows > 80)
    assert drafter.pool.requests == () and drafter.pool.free_rows == drafter.pool.kv_rows
    drafter.pool.check_integrity()


def test_the_output_tells_how_often(texts: tuple[Sampling, list[list[int]]]) -> None:
    made, (sampling, known) = family("llama", "float64"), texts
    engine = Engine(made.target, config=EngineConfig(max_kv_rows=112))
    params = SamplingParams(TOKENS, sampling.temperature, sampling.seed)
    outputs = engine.generate(prompts(), params, policy="ar")
    assert [output.token_ids for output in outputs] == known
    assert outputs[0].preemptions == 0 and sum(output.preemptions for output in outputs) > 0
    engine.close()


def test_trees_take_only_rows_that_nobody_needs() -> None:
    """Two requests that fit side by side are never sent away for a third one's nodes."""
    play = Play(sure=True)
    play.engine = Engine(play.target, play.drafter, config=EngineConfig(max_kv_rows=96))
    text = [int(token) for token in np.random.default_rng(1).integers(10, 60, 28)]
    requests = [
        play.submit(text, "ddtree", budget=256, candidates=16, max_tokens=28, end_ids=frozenset(), dice=n)
        for n in range(3)
    ]
    play.finish()
    assert [request.token_ids for request in requests] == [text] * 3
    assert [request.preemptions for request in requests] == [0, 0, 0]
    assert max(record.rows for request in requests for record in request.rounds) > 16


def test_a_prompt_longer_than_the_pool_is_refused() -> None:
    engine = Engine(ScriptedTarget(64), config=EngineConfig(max_kv_rows=40))
    rows = engine.state.pool.kv_rows
    assert rows == 48  # whole pages
    with pytest.raises(RequestError) as caught:
        engine.submit([1] * (rows + 1), policy="ar")
    words = f"prompt of {rows + 1} tokens: expected at most {rows}, the rows of the KV pool; see --kv-memory"
    assert str(caught.value) == words
    submit(engine, [1] * rows, make_policy("ar"), SamplingParams(4))


@pytest.mark.parametrize("case", ["ar", "ddtree"])
def test_a_request_alone_ends_where_the_pool_does(case: str) -> None:
    play = Play()
    play.engine = Engine(play.target, play.drafter, config=EngineConfig(max_kv_rows=48))
    text = [int(token) for token in np.random.default_rng(2).integers(10, 60, 100)]
    request = play.submit(text, case, max_tokens=100, end_ids=frozenset())
    play.finish()
    assert (request.finish_reason, request.preemptions) == ("length", 0)
    assert request.token_ids == text[: 48 - len(PROMPT) + 1]
    assert max(int(batch.pos.max()) for batch in play.target.batches) == 47
