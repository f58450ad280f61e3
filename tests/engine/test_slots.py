"""Requests that come and go: slots, queues, aborts, chunked prefill, several threads."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from decoding import RAGGED, Wanted, greedy_wanted, knowing, policy_case, random_drafter, run
from families import LAYERS, VOCAB, Family, family
from scripted import Play
from stepping import submit
from stub_drafter import KnowingDrafter

from draftwood.core import RoundRecord
from draftwood.engine import Engine, EngineConfig, Request, SamplingParams
from draftwood.errors import RequestError
from draftwood.policy import make_policy

CASES = ("chain", "ddtree7", "ddtree64", "ar", "ddtree1")


def many_prompts(made: Family, count: int, tokens: int = 12) -> list[Wanted]:
    """Prompts of 1 to 40 tokens with their greedy texts, in float64, where ties need no care."""
    wanted = []
    for seed in range(count):
        rng = np.random.default_rng([77, seed])
        prompt = tuple(int(token) for token in rng.integers(0, VOCAB, rng.integers(1, 41)))
        length = int(rng.integers(2, tokens + 1))
        wanted.append(Wanted(prompt, made.greedy(prompt, length)[0], 0, seed))
    return wanted


def history(request: Request) -> list[tuple[int, int, bool, int, int]]:
    return [(one.rows, one.committed, one.drafted, one.context, one.accepted) for one in request.rounds]


@pytest.mark.parametrize("kind", ["knowing", "random"])
def test_twenty_requests_over_four_slots_equal_their_solo_runs(kind: str, tmp_path: Path) -> None:
    made = family("qwen3", "float64")
    wanted = many_prompts(made, 20)
    drafter = knowing() if kind == "knowing" else random_drafter(tmp_path, made)
    solo = {}
    for index, one in enumerate(wanted):
        (done,) = run(made, drafter, [CASES[index % len(CASES)]], [one])
        assert done.request.token_ids == one.text
        solo[index] = history(done.request)
    assert any(committed > 1 for rounds in solo.values() for _, committed, *_ in rounds)
    order = np.random.default_rng(3).permutation(20).tolist()
    engine = Engine(made.target, drafter, config=EngineConfig(prefill_chunk=16, max_requests=4))
    requests = {}
    for index in order:
        requests[index] = enter(engine, drafter, CASES[index % len(CASES)], wanted[index])
    while engine.loop.step():
        engine.check_integrity()
        assert len(engine.state.running) <= 4
    for index, request in requests.items():
        assert request.token_ids == wanted[index].text
        assert history(request) == solo[index]
    assert engine.state.pool.requests == ()
    assert engine.state.pool.free_rows == engine.state.pool.kv_rows


def enter(engine: Engine, drafter: object, case: str, one: Wanted) -> Request:
    options = SamplingParams(len(one.text), end_ids=frozenset())
    request = submit(engine, one.prompt, policy_case(case), options)
    if isinstance(drafter, KnowingDrafter):
        drafter.know(request.id, [*one.prompt, *one.text], one.dice)
    return request


def test_the_same_prompt_five_times_gives_the_same_rounds(tmp_path: Path) -> None:
    made = family("llama", "float64")
    (one,) = many_prompts(made, 1)
    engine = Engine(made.target, random_drafter(tmp_path, made))
    seen = []
    for _ in range(5):
        request = enter(engine, None, "ddtree7", one)
        while engine.loop.step():
            pass
        seen.append((request.token_ids, history(request)))
    assert seen == [seen[0]] * 5


def test_after_two_hundred_requests_with_aborts_everything_is_free(tmp_path: Path) -> None:
    made = family("llama", "float32")
    drafter = random_drafter(tmp_path, made)
    engine = Engine(made.target, drafter, config=EngineConfig(prefill_chunk=24, max_requests=6))
    rng = np.random.default_rng(9)
    alive: list[Request] = []
    for number in range(200):
        prompt = rng.integers(0, VOCAB, rng.integers(1, 40)).tolist()
        policy = make_policy("ddtree", budget=int(rng.integers(0, 20)))
        alive.append(submit(engine, prompt, policy, SamplingParams(int(rng.integers(1, 6)), end_ids=frozenset())))
        if number % 3 == 0:
            engine.loop.step()
        if rng.random() < 0.4:
            gone = alive[int(rng.integers(0, len(alive)))]
            before = gone.finish_reason
            engine.loop.abort(gone)
            assert gone.finish_reason == (before or "abort")
        engine.check_integrity()
        drafter.pool.check_integrity()
    for request in alive[::2]:
        engine.loop.abort(request)
        engine.loop.abort(request)
    while engine.loop.step():
        engine.check_integrity()
    assert all(request.finished for request in alive)
    assert {request.finish_reason for request in alive} == {"abort", "length"}
    for pool in (engine.state.pool, drafter.pool):
        assert pool.requests == () and pool.free_rows == pool.kv_rows
        pool.check_integrity()
    assert drafter._queue == [] and engine.state.waiting == [] == engine.state.running


def test_results_come_as_they_end_and_closing_gives_everything_back(tmp_path: Path) -> None:
    made = family("llama", "float64")
    prompts = [one.prompt for one in many_prompts(made, 4)]
    engine = Engine(made.target, random_drafter(tmp_path, made), config=EngineConfig(max_requests=2, prefill_chunk=8))
    in_order = engine.generate(prompts, policy="chain", max_tokens=9)
    ended = list(engine.generate_unordered(prompts, policy="chain", max_tokens=9))
    assert sorted(index for index, _ in ended) == [0, 1, 2, 3]
    assert all(generation.token_ids == in_order[index].token_ids for index, generation in ended)
    assert [generation.finish_reason for _, generation in ended] == ["length"] * 4
    running = engine.generate_unordered(prompts, policy="chain", max_tokens=9)
    assert not engine.state.busy  # nothing is queued before it is asked for
    next(running)
    running.close()
    with engine.loop.paused():
        assert engine.state.waiting == [] == engine.state.running and engine.state.pool.requests == ()


def test_an_abort_leaves_the_neighbours_alone() -> None:
    made = family("gemma2", "float64")
    wanted = greedy_wanted("gemma2", "float64", RAGGED[:3])
    drafter = knowing()
    engine = Engine(made.target, drafter, config=EngineConfig(prefill_chunk=8))
    requests = [enter(engine, drafter, "ddtree64", one) for one in wanted]
    for _ in range(5):
        engine.loop.step()
    assert len(requests[0].token_ids) > 3 and not requests[0].finished
    before = list(requests[0].token_ids)
    engine.loop.abort(requests[0])
    while engine.loop.step():
        engine.check_integrity()
    assert requests[0].token_ids == before == wanted[0].text[: len(before)]
    assert engine.output(requests[0]).finish_reason == "abort"
    assert [request.token_ids for request in requests[1:]] == [one.text for one in wanted[1:]]


@pytest.mark.parametrize("name", ["mistral", "gemma3"])
def test_prefill_in_chunks_drafts_as_well_as_in_one(name: str, tmp_path: Path) -> None:
    """A real drafter sees every chunk: the same committed lists, alone and beside a decoding request."""
    made, chunk = family(name, "float64"), 6
    drafter = random_drafter(tmp_path, made)
    for length in (chunk - 1, chunk, chunk + 1, 3 * chunk, 3 * chunk + 5):
        prompt = tuple(int(token) for token in np.random.default_rng(length).integers(0, VOCAB, length))
        one = Wanted(prompt, made.greedy(prompt, 14)[0], 0, length)
        histories = []
        for size, neighbour in ((512, False), (chunk, False), (chunk, True)):
            engine = Engine(made.target, drafter, config=EngineConfig(prefill_chunk=size))
            if neighbour:
                beside = submit(engine, (5, 4, 3), policy_case("ddtree7"), SamplingParams(40, end_ids=frozenset()))
                engine.loop.step()
                engine.loop.step()
            request = enter(engine, drafter, "ddtree64", one)
            steps = 0
            while not request.finished:
                engine.loop.step()
                steps += request.in_prefill
            assert request.token_ids == one.text
            assert steps == (0 if size == 512 else -(-length // chunk) - 1)
            if neighbour:
                assert len(beside.rounds) > 1
                engine.loop.abort(beside)
            histories.append(history(request))
        assert histories == [histories[0]] * 3


def test_the_pool_stays_as_it_is_while_requests_run() -> None:
    made = family("gpt_oss", "float64")
    wanted = greedy_wanted("gpt_oss", "float64", RAGGED)
    seen, held = set(), set()

    def note(engine: Engine, done: object) -> None:
        pool = engine.state.pool
        seen.add((pool.kv_rows, *(pool.k(layer).data_ptr() for layer in range(LAYERS))))
        held.add(pool.kv_rows - pool.free_rows)

    for one in run(made, knowing(), ["ddtree64", "ar"], wanted, after_step=note):
        assert one.request.token_ids == one.wanted.text
    assert len(seen) == 1 and len(held) >= 5, "pages come and go with the tokens"


def test_a_bounded_pool_makes_requests_wait_and_refuses_what_never_fits() -> None:
    play = Play()
    play.engine = Engine(play.target, play.drafter, config=EngineConfig(max_kv_rows=64))
    text = list(range(10, 40))
    requests = [play.submit(text, "ddtree", budget=7, max_tokens=20, end_ids=frozenset(), dice=n) for n in range(4)]
    with pytest.raises(RequestError, match="prompt of 65 tokens: expected at most 64, the rows of the KV pool; see --"):
        play.submit(text, "ddtree", prompt=[1] * 65)
    while play.engine.loop.step():
        play.engine.check_integrity()
        assert len(play.engine.state.running) <= 3, "each keeps a page to grow into"
        assert play.engine.state.pool.kv_rows == 64
    assert [request.token_ids for request in requests] == [text[:20]] * 4
    assert play.engine.state.pool.requests == ()


def test_threads_share_an_engine(tmp_path: Path) -> None:
    made = family("qwen3", "float64")
    drafter = random_drafter(tmp_path, made)
    wanted = many_prompts(made, 8, tokens=16)
    engine = Engine(made.target, drafter, config=EngineConfig(prefill_chunk=16))
    results: dict[int, list[int]] = {}
    failures: list[BaseException] = []

    def work(index: int) -> None:
        one = wanted[index]
        name, options = ("chain", {}) if index % 2 else ("ddtree", {"budget": 12})
        try:
            if index % 4 < 2:
                (done,) = engine.generate([one.prompt], policy=name, max_tokens=len(one.text), **options)
                results[index] = done.token_ids
            else:
                pieces = list(engine.stream(one.prompt, policy=name, max_tokens=len(one.text), **options))
                results[index] = [token for piece in pieces for token in piece.token_ids]
                assert pieces[-1].output is not None
                assert pieces[-1].output.token_ids == results[index]
                assert all(piece.output is None for piece in pieces[:-1])
        except BaseException as error:  # noqa: BLE001 - a thread must hand its failure to the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert results == {index: one.text for index, one in enumerate(wanted)}
    for pool in (engine.state.pool, drafter.pool):
        assert pool.requests == () and pool.free_rows == pool.kv_rows


def test_a_stream_whose_request_another_thread_advances() -> None:
    """Steps taken elsewhere between two pieces lose nothing."""
    made = family("llama", "float64")
    (one,) = many_prompts(made, 1)
    engine = Engine(made.target)
    for steps_between in (1, 3, 100):
        pieces = []
        for piece in engine.stream(one.prompt, policy="ar", max_tokens=len(one.text)):
            pieces.append(piece)
            for _ in range(steps_between):
                engine.loop.step()
        assert [token for piece in pieces for token in piece.token_ids] == one.text
        assert pieces[-1].output is not None and pieces[-1].output.token_ids == one.text


def test_closing_a_stream_aborts_its_request() -> None:
    made = family("llama", "float64")
    (one,) = many_prompts(made, 1)
    engine = Engine(made.target)
    stream = engine.stream(one.prompt, policy="ar", max_tokens=50)
    assert next(stream).token_ids == one.text[:1]
    stream.close()  # type: ignore[attr-defined]
    engine.stream(one.prompt, policy="ar", max_tokens=50).close()  # type: ignore[attr-defined]  # never started
    assert engine.loop.step() == [] and engine.state.pool.requests == ()


def test_rounds_say_what_happened() -> None:
    play = Play(sure=True)
    text = list(range(10, 40))
    request = play.submit(text, "chain", max_tokens=20, end_ids=frozenset())
    play.finish()
    rows = [(8, 8, True, 3, 7), (8, 8, True, 11, 7), (3, 3, True, 19, 2)]
    assert request.rounds == [RoundRecord(*row) for row in rows]
