"""The public face: handles that iterate, wait, await and abort; engines that close; settings of a request."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any

import pytest
from byte_tokenizer import byte_level
from scripted import Play
from summing import SummingDrafter, SummingTarget, text_of

from draftwood.engine import Engine, RequestHandle, RequestOutput, SamplingParams
from draftwood.engine.step import Stages
from draftwood.errors import DraftwoodError, RequestError, UsageError
from draftwood.models.text import TextCodec

PROMPTS = [[3 + number, 1, 4, number] for number in range(20)]
SOON = 5.0


def made(**fields: Any) -> Engine:
    return Engine(SummingTarget(**fields), SummingDrafter())


class Gate:
    """Holds every forward of an engine until it is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.reached = threading.Event()

    def __call__(self, rows: int) -> tuple[()]:
        self.reached.set()
        assert self.open.wait(30)
        return ()


def loop_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "draftwood-loop"]


class TestWaiting:
    def test_iterate_then_result(self) -> None:
        with made() as engine:
            handle = engine.submit(PROMPTS[0], policy="ddtree", budget=6, max_tokens=20)
            pieces = list(handle)
            tokens = [token for piece in pieces for token in piece.token_ids]
            assert tokens == text_of(PROMPTS[0], 20) and len(pieces) > 2
            assert [piece.output for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
            output = handle.result()
            assert output is pieces[-1].output and output.token_ids == tokens
            assert list(handle) == [] and handle.result(0) is output and handle.id == handle.request.id

    def test_result_after_some_pieces_is_whole(self) -> None:
        with made() as engine:
            handle = engine.submit(PROMPTS[0], policy="ar", max_tokens=20)
            first = next(iter(handle))
            assert first.token_ids == text_of(PROMPTS[0], 20)[: len(first.token_ids)]
            assert handle.result(SOON).token_ids == text_of(PROMPTS[0], 20)

    def test_a_timeout_ends_nothing(self) -> None:
        gate = Gate()
        with made(fault=gate) as engine:
            handle = engine.submit(PROMPTS[0], policy="ar", max_tokens=9)
            with pytest.raises(TimeoutError, match=r"no news for 0\.05 s"):
                handle.result(timeout_s=0.05)
            gate.open.set()
            assert handle.result(SOON).token_ids == text_of(PROMPTS[0], 9)

    def test_abort(self) -> None:
        gate = Gate()
        with made(fault=gate) as engine:
            handles = [engine.submit(prompt, policy="chain", max_tokens=400) for prompt in PROMPTS[:3]]
            assert gate.reached.wait(SOON)
            handles[1].abort()  # while a step is under way: it does not wait for it
            handles[1].abort()
            gate.open.set()
            output = handles[1].result(SOON)
            assert output.finish_reason == "abort" and len(output.token_ids) < 100
            assert output.token_ids == text_of(PROMPTS[1], len(output.token_ids))
            for at in (0, 2):
                assert handles[at].result(SOON).token_ids == text_of(PROMPTS[at], 400)
            handles[0].abort()
            assert handles[0].result().finish_reason == "length"

    def test_readers_in_threads(self) -> None:
        with made() as engine:
            handles = [engine.submit(prompt, policy="chain", max_tokens=30) for prompt in PROMPTS]
            found: dict[int, list[int]] = {}

            def read(at: int) -> None:
                found[at] = [token for piece in handles[at] for token in piece.token_ids]

            run_in_threads([lambda at=at: read(at) for at in range(len(handles))])  # type: ignore[misc]
        assert found == {at: text_of(prompt, 30) for at, prompt in enumerate(PROMPTS)}

    def test_what_came_before_an_error_is_read_before_it(self) -> None:
        calls = itertools.count(1)

        def fail(rows: int) -> tuple[()]:
            if next(calls) == 4:
                raise RuntimeError("lost")
            return ()

        with made(fault=fail) as engine:
            handle, tokens = engine.submit(PROMPTS[0], policy="ar", max_tokens=9), []
            while not handle.request.finished:
                threading.Event().wait(0.001)
            with pytest.raises(RuntimeError, match="lost"):
                for piece in handle:
                    tokens += piece.token_ids
            assert tokens == text_of(PROMPTS[0], 3)

    def test_a_slow_reader_holds_nobody_up(self) -> None:
        with made() as engine:
            slow = engine.stream(PROMPTS[0], policy="ar", max_tokens=300)
            assert next(slow).token_ids == text_of(PROMPTS[0], 1)
            start_s = perf_counter()
            (quick,) = engine.generate(PROMPTS[1:2], policy="ar", max_tokens=30)
            assert quick.token_ids == text_of(PROMPTS[1], 30) and perf_counter() - start_s < SOON
            rest = [token for piece in slow for token in piece.token_ids]
            assert rest == text_of(PROMPTS[0], 300)[1:]


def run_in_threads(work: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=one) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
        assert not thread.is_alive()


class TestCoroutines:
    def test_twenty_at_once_and_one_cancelled(self) -> None:
        async def one(engine: Engine, at: int) -> list[int]:
            handle = engine.submit(PROMPTS[at], policy="chain", max_tokens=5000 if at == 7 else 30)
            try:
                if at % 2 and at != 7:
                    return [token for piece in [piece async for piece in handle] for token in piece.token_ids]
                return (await handle).token_ids
            except asyncio.CancelledError:
                handle.abort()
                assert (await handle).finish_reason == "abort"
                raise

        async def everything(engine: Engine) -> list[Any]:
            tasks = [asyncio.create_task(one(engine, at)) for at in range(len(PROMPTS))]
            await asyncio.sleep(0.01)
            tasks[7].cancel()
            return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), SOON)

        with made(context_limit=8192) as engine:
            found = asyncio.run(everything(engine))
            engine.check_integrity()
            assert not engine.state.busy
        assert isinstance(found.pop(7), asyncio.CancelledError)
        assert found == [text_of(prompt, 30) for at, prompt in enumerate(PROMPTS) if at != 7]

    def test_the_loop_of_coroutines_goes_on_meanwhile(self) -> None:
        gate = Gate()

        async def other(engine: Engine) -> RequestOutput:
            handle = engine.submit(PROMPTS[0], policy="ar", max_tokens=5)
            waiting = asyncio.ensure_future(handle._wait())
            for _ in range(5):
                await asyncio.sleep(0.001)
            assert not waiting.done()
            gate.open.set()
            return await asyncio.wait_for(waiting, SOON)

        with made(fault=gate) as engine:
            assert asyncio.run(other(engine)).token_ids == text_of(PROMPTS[0], 5)

    def test_an_error_reaches_every_way_of_waiting(self) -> None:
        error = RuntimeError("lost")

        def fail(rows: int) -> tuple[()]:
            raise error

        async def iterate(handle: RequestHandle) -> None:
            async for _ in handle:
                pass

        async def wait(handle: RequestHandle) -> None:
            await handle

        with made(fault=fail) as engine:
            for way in (
                list,
                RequestHandle.result,
                lambda one: asyncio.run(iterate(one)),
                lambda one: asyncio.run(wait(one)),
            ):
                handle = engine.submit(PROMPTS[0], policy="ar")
                for _ in range(2):
                    with pytest.raises(RuntimeError) as caught:
                        way(handle)
                    assert caught.value is error


class TestClosing:
    def test_nothing_can_be_asked_afterwards(self) -> None:
        with made() as engine:
            assert engine.generate(PROMPTS[:1], policy="ar", max_tokens=3)[0].token_ids == text_of(PROMPTS[0], 3)
        asking: list[Callable[[], Any]] = [
            lambda: engine.generate(PROMPTS[:1], policy="ar"),
            lambda: list(engine.stream(PROMPTS[0], policy="ar")),
            lambda: engine.submit(PROMPTS[0], policy="ar"),
        ]
        for ask in asking:
            with pytest.raises(DraftwoodError, match=r"^the engine is closed$"):
                ask()
        engine.close()
        assert not engine.state.busy

    def test_whoever_waits_is_told(self) -> None:
        gate = Gate()
        engine = made(fault=gate)
        handles = [engine.submit(prompt, policy="chain", max_tokens=400) for prompt in PROMPTS[:4]]
        outputs: list[RequestOutput] = []
        readers = [threading.Thread(target=lambda one=one: outputs.append(one.result())) for one in handles]
        for reader in readers:
            reader.start()
        assert gate.reached.wait(SOON)
        closing = threading.Thread(target=engine.close)
        closing.start()
        gate.open.set()
        for thread in (closing, *readers):
            thread.join(SOON)
            assert not thread.is_alive()
        assert [output.finish_reason for output in outputs] == ["abort"] * 4
        assert engine.state.pool.requests == () and engine.state.drafter.known == {}  # type: ignore[union-attr]

    def test_a_forgotten_engine_ends_its_thread(self) -> None:
        before = loop_threads()
        engine = made()
        engine.generate(PROMPTS[:1], policy="ar", max_tokens=3)
        (thread,) = [one for one in loop_threads() if one not in before]
        loop = weakref.ref(engine.loop)
        del engine
        gc.collect()
        thread.join(SOON)
        assert not thread.is_alive() and loop() is None

    def test_an_engine_that_never_ran_has_no_thread(self) -> None:
        before = len(loop_threads())
        with made() as engine:
            engine.stream(PROMPTS[0], policy="ar").close()
            assert len(loop_threads()) == before

    def test_a_forgotten_stream_is_aborted(self) -> None:
        with made() as engine:
            stream = engine.stream(PROMPTS[0], policy="ar", max_tokens=4000)
            next(stream)
            del stream
            (after,) = engine.generate(PROMPTS[1:2], policy="ar", max_tokens=3)
            assert after.token_ids == text_of(PROMPTS[1], 3)
            with engine.loop.paused():
                assert not engine.state.busy


class TestSettings:
    def test_params_for_each_prompt_and_single_fields(self) -> None:
        with made() as engine:
            each = [SamplingParams(max_tokens=number) for number in (3, 5)]
            outputs = engine.generate(PROMPTS[:2], each, policy="ar")
            assert [len(output.token_ids) for output in outputs] == [3, 5]
            outputs = engine.generate(PROMPTS[:2], each, policy="ar", end_ids=frozenset(range(61)))
            assert [output.finish_reason for output in outputs] == ["stop"] * 2
            (drawn,) = engine.generate(PROMPTS[:1], policy="ar", temperature=1.0, seed=9, max_tokens=30)
            same = engine.submit(PROMPTS[0], SamplingParams(30, 1.0, 9), policy="chain").result(SOON)
            assert same.token_ids == drawn.token_ids != text_of(PROMPTS[0], 30) and same.seed == 9
            small = engine.submit(PROMPTS[0], policy="chain", block_size=2, max_tokens=20).result(SOON)
            assert max(record.rows for record in small.rounds) == 2
            with pytest.raises(UsageError, match=r"^3 params for 2 prompts: expected one for all, or one for each$"):
                engine.generate(PROMPTS[:2], [SamplingParams()] * 3, policy="ar")

    @pytest.mark.parametrize("way", ["generate", "stream", "submit"])
    def test_an_unknown_setting_names_what_the_policy_takes(self, way: str) -> None:
        with made() as engine:
            prompt: Any = PROMPTS[:1] if way == "generate" else PROMPTS[0]
            with pytest.raises(UsageError) as caught:
                getattr(engine, way)(prompt, policy="ddtree", max_token=3)
            said = str(caught.value)
            assert said.startswith("option 'max_token' is not used by policy ddtree: expected ") and "\n" not in said
            assert "budget" in said and not engine.state.busy

    def test_a_prompt_can_be_given_in_any_way(self) -> None:
        with made() as engine:
            assert engine.encode((1, 2)) == [1, 2]
            for prompt in (PROMPTS[0], tuple(PROMPTS[0])):
                assert engine.submit(prompt, policy="ar", max_tokens=4).result().token_ids == text_of(PROMPTS[0], 4)


class TestChat:
    TURNS = (
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    )

    @pytest.fixture
    def play(self) -> Play:
        codec = TextCodec(byte_level(), name="bytes")
        return Play(vocab=len(codec.tokenizer), codec=codec)

    def test_a_conversation_is_its_rendered_ids(self, play: Play) -> None:
        engine, codec = play.engine, play.codec
        assert codec is not None
        rendered = codec.tokenizer.apply_chat_template(list(self.TURNS), add_generation_prompt=True, return_dict=True)
        ids = rendered["input_ids"]
        end = codec.tokenizer.eos_token_id
        for request in range(5):
            play.expect(request, [97, 98, end, 99], prompt=ids)
        (chat,) = engine.chat(self.TURNS, policy="chain")
        two = engine.chat([self.TURNS, list(self.TURNS)], policy="ar")
        (plain,) = engine.generate([ids], policy="chain", end_ids=frozenset(codec.end_ids))
        streamed = list(engine.stream(self.TURNS, policy="ar"))
        assert [one.token_ids for one in (chat, *two)] == [plain.token_ids] * 3 == [[97, 98, end]] * 3
        assert chat.text == "ab" == "".join(piece.text for piece in streamed) and chat.prompt_tokens == len(ids)

    @pytest.mark.parametrize(
        ("messages", "said"),
        [
            ([{"role": "user"}], "message {'role': 'user'}: expected an object with role and content"),
            ([{"role": "user", "content": "a", "x": 1}], "expected an object with role and content"),
            ([{"role": "user", "content": "a"}, "b"], "message 'b': expected an object with role and content"),
            ([{"role": "user", "content": 5}], "message content 5: expected text"),
            ([{"role": "user", "content": "\ud800"}], "expected text"),
            ([{"role": "user", "content": ["a"]}], "message content ['a']: expected text"),
        ],
    )
    def test_bad_messages_in_one_line(self, play: Play, messages: Any, said: str) -> None:
        with pytest.raises(RequestError) as caught:
            play.engine.chat(messages, policy="ar")
        assert said in str(caught.value) and "\n" not in str(caught.value)
        assert not play.engine.state.busy

    def test_a_conversation_says_it_all(self, play: Play) -> None:
        with pytest.raises(UsageError, match="a conversation takes neither raw nor system"):
            play.engine.generate([self.TURNS], policy="ar", raw=True)
        with pytest.raises(UsageError, match="this engine has no tokenizer"):
            made().chat(self.TURNS, policy="ar")


def test_an_engine_can_be_watched_while_it_serves() -> None:
    """`paused` and `watching` wait for a step, and let nobody in between."""
    with made() as engine:
        handle = engine.submit(PROMPTS[0], policy="ar", max_tokens=2000)
        seen: list[int] = []

        def change(stages: Stages) -> Stages:
            def deliver(*args: Any) -> Any:
                seen.append(len(args[1]))
                return stages.deliver(*args)

            return replace(stages, deliver=deliver)

        with engine.loop.watching(change):
            engine.submit(PROMPTS[1], policy="ar", max_tokens=20).result(SOON)
        with engine.loop.paused():
            count = len(seen)
            tokens = len(handle.request.token_ids)
            engine.check_integrity()
            assert len(handle.request.token_ids) == tokens and max(seen) == 2
        handle.abort()
        assert handle.result(SOON).token_ids == text_of(PROMPTS[0], len(handle.request.token_ids))
        assert len(seen) == count
