"""Errors in the middle of a step: who ends with them, and that nobody else's text or memory is touched."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from scripted import PROMPT, Play
from stepping import submit
from stub_drafter import Watched

from draftwood.engine import Engine, EngineConfig, Request, SamplingParams
from draftwood.engine.step import STAGE_NAMES, Stages
from draftwood.errors import CostError, DraftwoodError
from draftwood.policy import make_policy
from draftwood.policy.batch import draft_wishes

TEXTS = [[int(token) for token in np.random.default_rng(seed).integers(10, 60, 30)] for seed in range(6)]
"""Of four requests that run, one of which is still in its prompt at the third step, and two that wait."""
PROMPTS = [PROMPT, PROMPT, PROMPT, tuple(range(1, 20)), PROMPT, PROMPT]
POLICIES = [("ddtree", {"budget": 7}), ("ar", {}), ("chain", {}), ("ddtree", {"budget": 3})]
CALLS = ("drafter.propose", "drafter.commit", "drafter.open", "drafter.close", "target.forward")
Thrown = Callable[[Any], Any]


def thrower(error: BaseException, number: int, *, after: bool = False) -> Thrown:
    """Wraps a function so that its call `number` raises, before or after its work."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        calls = itertools.count(1)

        def call(*args: Any, **kwargs: Any) -> Any:
            due = next(calls) == number
            if due and not after:
                raise error
            result = function(*args, **kwargs)
            if due:
                raise error
            return result

        return call

    return wrap


def in_stage(name: str, wrap: Thrown) -> Callable[[Stages], Stages]:
    return lambda stages: replace(stages, **{name: wrap(getattr(stages, name))})


@dataclass
class Six:
    """Six requests on an engine for four."""

    play: Play
    requests: list[Request]

    @property
    def engine(self) -> Engine:
        return self.play.engine


def six() -> Six:
    play = Play()
    play.engine = Engine(play.target, play.drafter, config=EngineConfig(max_requests=4, prefill_chunk=12))
    requests = []
    for index, (text, prompt) in enumerate(zip(TEXTS, PROMPTS, strict=True)):
        policy, options = POLICIES[index % len(POLICIES)]
        how = {"dice": index, "max_tokens": len(text), "end_ids": frozenset(), **options}
        requests.append(play.submit(text, policy, prompt, **how))  # type: ignore[arg-type]
    return Six(play, requests)


def assert_only_these_ended(found: Six, ended: list[Request], error: BaseException) -> None:
    """`ended` have the very error and a beginning of their text; all others get theirs whole, as does a newcomer."""
    play, requests = found.play, found.requests
    for request, text in zip(requests, TEXTS, strict=True):
        if request in ended:
            assert (request.finish_reason, request.error) == ("error", error)
            assert request.token_ids == text[: len(request.token_ids)]
    while play.engine.loop.step():
        play.engine.check_integrity()
    last = play.submit(TEXTS[0], "ddtree", budget=7, max_tokens=20, end_ids=frozenset())
    play.finish()
    assert last.token_ids == TEXTS[0][:20]
    for request, text in zip(requests, TEXTS, strict=True):
        assert request.finished and (request in ended or request.token_ids == text)
    pool = play.engine.state.pool
    assert pool.free_rows == pool.kv_rows and play.drafter.taps == {}


ERRORS = [RuntimeError("lost"), MemoryError(), KeyboardInterrupt()]


@pytest.mark.parametrize("error", ERRORS[:2], ids=["runtime", "memory"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", STAGE_NAMES)
def test_an_error_around_a_stage_ends_those_that_run(name: str, after: bool, error: Exception) -> None:
    found = six()
    with found.engine.loop.watching(in_stage(name, thrower(error, 3, after=after))):
        for _ in range(2):
            found.engine.loop.step()
            found.engine.check_integrity()
        running = list(found.engine.state.running)
        assert running == found.requests[:4] and running[3].in_prefill != running[0].in_prefill
        found.engine.loop.step()
    found.engine.check_integrity()
    assert [request for request in found.requests if request.finished] == running
    assert_only_these_ended(found, running, error)


@pytest.mark.parametrize("error", ERRORS[:2], ids=["runtime", "memory"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", CALLS)
def test_an_error_inside_a_model_ends_those_that_run(
    name: str, after: bool, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`open` and `close` fail at a request that begins when others run, and at the first that ends."""
    found = six()
    part, method = name.split(".")
    owner = getattr(found.play, part)
    number = {"open": 4, "close": 1}.get(method, 3)
    monkeypatch.setattr(owner, method, thrower(error, number, after=after)(getattr(owner, method)))
    running: list[Request] = []
    while not any(request.error for request in found.requests):
        running = list(found.engine.state.running)
        found.engine.loop.step()
        found.engine.check_integrity()
    ended = [request for request in found.requests if request.error is not None]
    # One that fails to close has ended well: its text is whole. One that fails to open is among those that run.
    whole = [request for request in running if request.finish_reason == "length"]
    newcomers = found.requests[4:5] if method == "open" else []
    assert len(whole) == (method == "close")
    assert ended == [*(one for one in running if one not in whole), *newcomers] and len(ended) >= 3
    assert all(one.token_ids == TEXTS[found.requests.index(one)] for one in whole)
    if method == "close" and not after:
        found.play.drafter.taps.clear()  # it has refused to
    assert_only_these_ended(found, ended, error)


@pytest.mark.parametrize("error", ERRORS, ids=["runtime", "memory", "interrupt"])
@pytest.mark.parametrize("name", STAGE_NAMES)
def test_readers_in_threads_get_the_error_at_once(name: str, error: BaseException) -> None:
    play = Play()
    got: list[BaseException] = []

    def read(handle: Any) -> None:
        try:
            handle.result(timeout_s=5.0)
        except BaseException as found:  # noqa: BLE001 - a thread must hand what it got to the test
            got.append(found)

    for request in range(3):
        play.expect(request, TEXTS[0])
    with play.engine.loop.watching(in_stage(name, thrower(error, 3))):
        with play.engine.loop.paused():
            handles = [play.engine.submit(PROMPT, policy="chain", max_tokens=30) for _ in range(2)]
        readers = [threading.Thread(target=read, args=(handle,)) for handle in handles]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(timeout=1.0)
            assert not reader.is_alive()
    assert got == [error] * 2
    (again,) = play.engine.generate([PROMPT], policy="chain", max_tokens=20)
    assert again.token_ids == TEXTS[0][:20]
    play.engine.check_integrity()
    play.engine.close()
    assert play.engine.loop._thread is None and play.drafter.taps == {}


def test_a_step_that_cannot_begin_ends_the_oldest_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    found, error = six(), RuntimeError("no schedule")
    with found.engine.loop.watching(in_stage("schedule", thrower(error, 1))):
        found.engine.loop.step()
        assert_only_these_ended(found, found.requests[:1], error)


def test_an_abort_from_inside_a_step_waits_for_its_end() -> None:
    """As when the collector closes a forgotten stream in the loop's thread."""
    found = six()

    def aborting(stages: Stages) -> Stages:
        calls = itertools.count(1)

        def draft(*args: Any) -> Any:
            if next(calls) == 3:
                found.engine.loop.abort(found.requests[0])
                assert not found.requests[0].finished
            return stages.draft(*args)

        return replace(stages, draft=draft)

    with found.engine.loop.watching(aborting):
        while found.engine.loop.step():
            found.engine.check_integrity()
    assert found.requests[0].finish_reason == "abort" and 1 < len(found.requests[0].token_ids) < 30
    assert [request.token_ids for request in found.requests[1:]] == TEXTS[1:]


@pytest.mark.parametrize("method", ["wants_draft", "choose", "observe"])
@pytest.mark.parametrize("neighbours", [0, 3])
def test_an_error_of_a_policy_ends_its_request_alone(method: str, neighbours: int) -> None:
    play, error = Play(), CostError("this policy has lost its costs")
    policy = Watched(make_policy("ddtree", budget=7))
    calls = itertools.count(1)

    def fail(*args: Any) -> Any:
        if next(calls) >= 3:
            raise error
        return getattr(policy.inner, method)(*args)

    object.__setattr__(policy, method, fail)
    bad = submit(play.engine, PROMPT, policy, SamplingParams(30, end_ids=frozenset()))
    play.expect(bad.id, TEXTS[0])
    others = [
        play.submit(TEXTS[n], "ddtree", budget=7, dice=n, max_tokens=30, end_ids=frozenset())
        for n in range(1, 1 + neighbours)
    ]
    play.finish()
    assert (bad.finish_reason, bad.error) == ("error", error)
    assert 3 <= len(bad.token_ids) < 30 and bad.token_ids == TEXTS[0][: len(bad.token_ids)]
    assert [request.token_ids for request in others] == TEXTS[1 : 1 + neighbours]
    assert all(request.rounds[0].drafted for request in others)


def test_an_error_that_policies_make_together_is_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """When each alone is well, nobody can be told apart; those that do not draft are left alone."""
    play, error = Play(), DraftwoodError("too many at once")
    requests = [play.submit(TEXTS[n], "ddtree", budget=7, max_tokens=30, end_ids=frozenset()) for n in range(2)]
    plain = play.submit(TEXTS[2], "ar", max_tokens=30, end_ids=frozenset())

    def wishes(asked: Any, *args: Any, **kwargs: Any) -> Any:
        if len(asked) > 1:
            raise error
        return draft_wishes(asked, *args, **kwargs)

    monkeypatch.setattr("draftwood.engine.round.draft_wishes", wishes)
    play.finish()
    assert [request.error for request in requests] == [error] * 2
    assert plain.token_ids == TEXTS[2]
