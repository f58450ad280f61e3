"""Seeds: a text belongs to its seed and completion, never to its neighbours; without a seed it is drawn afresh."""

from __future__ import annotations

from families import family
from stepping import submit

from draftwood.core import Sampling
from draftwood.engine import Engine, SamplingParams
from draftwood.policy import make_policy

PROMPT = (3, 1, 4, 1, 5)


def test_seeded_texts_in_one_batch_equal_their_plain_draws() -> None:
    made = family("qwen3", "float64")
    settings = [(0.7, 5, 0), (0.7, 5, 1), (0.7, 6, 0), (1.3, 5, 0), (0.7, 5, 0)]
    engine = Engine(made.target)
    requests = [
        submit(
            engine, PROMPT, make_policy("ar"), SamplingParams(24, temperature, seed, completion, end_ids=frozenset())
        )
        for temperature, seed, completion in settings
    ]
    while engine.loop.step():
        pass
    texts = [request.token_ids for request in requests]
    assert texts == [made.sampled(PROMPT, 24, Sampling(*setting)) for setting in settings]
    assert texts[0] == texts[4] and len({tuple(text) for text in texts}) == 4


def test_without_a_seed_every_request_draws_its_own() -> None:
    engine = Engine(family("qwen3", "float64").target)
    results = engine.generate([PROMPT] * 3, policy="ar", temperature=1.0, max_tokens=24)
    assert len({tuple(result.token_ids) for result in results}) == 3
    again = [
        engine.generate([PROMPT], policy="ar", temperature=1.0, seed=result.seed, max_tokens=24)[0]
        for result in results
    ]
    assert [result.token_ids for result in again] == [result.token_ids for result in results]


def test_greedy_texts_have_no_seed_in_them() -> None:
    engine = Engine(family("qwen3", "float64").target)
    texts = [engine.generate([PROMPT], policy="ar", seed=seed, max_tokens=24)[0].token_ids for seed in (0, 1)]
    assert texts[0] == texts[1] == family("qwen3", "float64").greedy(PROMPT, 24)[0]
