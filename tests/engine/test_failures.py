"""What goes wrong in one request stays there; what cannot run is refused before it starts."""

from __future__ import annotations

import copy
import itertools
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoding import POLICY_CASES, RAGGED, greedy_wanted, knowing, policy_case, random_drafter
from families import CONTEXT_LIMIT, VOCAB, Family, family
from scripted import Play
from stepping import submit

from draftwood.attention import SdpaBackend
from draftwood.batch import Batch
from draftwood.core import Forest
from draftwood.draft.base import DraftRequest
from draftwood.draft.dflash import DFlashDrafter
from draftwood.engine import Engine, EngineConfig, Request, SamplingParams
from draftwood.engine.step import STAGE_NAMES, Stages
from draftwood.errors import CostError, DraftwoodError, NonFiniteLogitsError, RequestError, UsageError
from draftwood.models.hf import HFTarget
from draftwood.policy import make_policy

BROKEN = 7
"""Its embedding is NaN in a broken model."""


def broken_family(value: float) -> Family:
    """A model whose token BROKEN gives logits that are not finite."""
    made = family("llama", "float64")
    model = copy.deepcopy(made.reference)
    target = HFTarget(model, SdpaBackend(), name="broken")
    with torch.no_grad():
        model.get_input_embeddings().weight[BROKEN] = value
    return Family("broken", target, made.reference, made.exact)


def clean_prompts(made: Family, count: int, tokens: int) -> list[tuple[tuple[int, ...], list[int]]]:
    """Prompts whose texts never meet the broken token."""
    found = []
    for seed in range(1000):
        prompt = tuple(int(t) for t in np.random.default_rng(seed).integers(0, VOCAB, 6 + seed % 9))
        text, _ = made.greedy(prompt, tokens)
        if BROKEN not in (*prompt, *text):
            found.append((prompt, text))
        if len(found) == count:
            return found
    raise AssertionError("no clean prompts")


def run_beside(engine: Engine, prompts: list[tuple[int, ...]], case: str, tokens: int) -> list[Request]:
    requests = [submit(engine, p, policy_case(case), SamplingParams(tokens, end_ids=frozenset())) for p in prompts]
    while engine.loop.step():
        engine.check_integrity()
    assert engine.state.pool.requests == ()
    return requests


@pytest.mark.parametrize("case", ["ar", "chain", "ddtree64"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_prompt_that_gives_nan_stops_alone(case: str, value: float, tmp_path: Path) -> None:
    made = broken_family(value)
    drafter = random_drafter(tmp_path, made)
    clean = clean_prompts(made, 3, 12)
    prompts = [clean[0][0], (1, 2, BROKEN, 4), clean[1][0], clean[2][0]]
    engine = Engine(made.target, drafter, config=EngineConfig(prefill_chunk=8))
    requests = run_beside(engine, prompts, case, 12)
    bad = requests.pop(1)
    assert bad.finish_reason == "error" and bad.token_ids == [] and bad.rounds == []
    assert isinstance(bad.error, NonFiniteLogitsError)
    assert str(bad.error).startswith("logits that decide position 4 contain nan")
    assert [request.token_ids for request in requests] == [text for _, text in clean]
    assert drafter.pool.requests == ()


@pytest.mark.parametrize("case", POLICY_CASES)
def test_a_text_that_reaches_nan_stops_at_the_same_place_under_every_policy(case: str) -> None:
    """Plain decoding delivers the broken token and fails at the next; so do trees that hold it somewhere."""
    made = broken_family(float("nan"))
    prompt, text = broken_text(made)
    at = text.index(BROKEN)
    drafter = knowing()
    engine = Engine(made.target, drafter)
    request = submit(engine, prompt, policy_case(case), SamplingParams(20, end_ids=frozenset()))
    drafter.know(request.id, [*prompt, *text], 0)
    while engine.loop.step():
        engine.check_integrity()
    assert request.token_ids == text[: at + 1] and request.finish_reason == "error"
    assert str(request.error).startswith(f"logits that decide position {len(prompt) + at + 1} contain nan")
    assert sum(record.committed for record in request.rounds) == at
    assert engine.state.pool.requests == () and drafter.taps == {}


def broken_text(made: Family) -> tuple[tuple[int, ...], list[int]]:
    """A prompt without the broken token whose text of 20 has it in the middle."""
    for seed in range(1000):
        prompt = tuple(int(t) for t in np.random.default_rng(seed).integers(8, VOCAB, 5))
        text, _ = made.greedy(prompt, 20)
        if BROKEN in text[6:14] and BROKEN not in text[:6]:
            return prompt, text
    raise AssertionError("no text with the broken token")


@pytest.mark.parametrize("case", ["ddtree7", "ddtree64"])
def test_drafting_a_token_that_gives_nan_changes_nothing(case: str) -> None:
    made = broken_family(float("nan"))
    drafter = knowing()
    engine = Engine(made.target, drafter)
    clean = clean_prompts(made, 4, 24)
    requests = []
    for dice, (prompt, text) in enumerate(clean):
        requests.append(submit(engine, prompt, policy_case(case), SamplingParams(24, end_ids=frozenset())))
        drafter.know(requests[-1].id, [*prompt, *text], dice)
    batches: list[Batch] = []
    with engine.loop.watching(lambda stages: replace(stages, pack=kept(stages.pack, batches))):
        while engine.loop.step():
            engine.check_integrity()
    assert sum(BROKEN in batch.token_ids for batch in batches) >= 3
    assert [request.token_ids for request in requests] == [text for _, text in clean]
    assert all(sum(record.committed for record in request.rounds) == 23 for request in requests)


def kept(stage: Callable[..., Batch], batches: list[Batch]) -> Callable[..., Batch]:
    """The stage, its results noted."""

    def run(*args: Any) -> Batch:
        batches.append(stage(*args))
        return batches[-1]

    return run


def test_generate_raises_the_error_after_all_have_ended() -> None:
    made = broken_family(float("nan"))
    engine = Engine(made.target)
    with pytest.raises(NonFiniteLogitsError, match="position 2 "):
        engine.generate([[1, 2, 3], [BROKEN, 4]], policy="ar", max_tokens=3)
    with pytest.raises(NonFiniteLogitsError, match="position 2 "):
        list(engine.stream([BROKEN, 4], policy="ar", max_tokens=3))
    assert engine.state.pool.requests == () and engine.loop.step() == []


class SometimesNan:
    """A drafter that cannot score one request."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.bad = -1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def propose(self, wanted: Sequence[DraftRequest]) -> Forest:
        forest = self.inner.propose(wanted)
        bad = [one.request == self.bad and one.context_len > 15 for one in wanted]
        cut = forest.prefix(np.where(bad, 0, 1024))
        return replace(cut, faulty={at: f"position {wanted[at].context_len + 1} is nan" for at in np.flatnonzero(bad)})


def test_a_drafter_that_gives_nan_makes_plain_rounds_of_that_request_alone(caplog: pytest.LogCaptureFixture) -> None:
    made = family("qwen3", "float64")
    wanted = greedy_wanted("qwen3", "float64", RAGGED)
    inner = knowing()
    drafter = SometimesNan(inner)
    engine = Engine(made.target, drafter)
    requests = []
    for one in wanted:
        requests.append(
            submit(engine, one.prompt, policy_case("ddtree7"), SamplingParams(len(one.text), end_ids=frozenset()))
        )
        inner.know(requests[-1].id, [*one.prompt, *one.text], one.dice)
    drafter.bad = requests[2].id
    while engine.loop.step():
        engine.check_integrity()
    assert [request.token_ids for request in requests] == [one.text for one in wanted]
    early = [one for one in requests[2].rounds if one.context <= 15]
    late = [one for one in requests[2].rounds if one.context > 15]
    assert all(one.drafted for one in early) and {(one.rows, one.committed) for one in late} == {(1, 1)}
    # In the last round no depth is left, so nothing is asked for.
    faulty = [request.faulty_drafts for request in requests]
    assert faulty == [0, 0, len(late) - 1, 0, 0] and engine.output(requests[2]).faulty_drafts == len(late) - 1
    place = f"request {drafter.bad}: position {late[0].context + 1} is nan"
    assert caplog.messages == [f"{place}: such rounds are decoded plainly"]
    assert engine.state.pool.requests == () and inner.taps == {}


def test_nan_in_a_real_drafter_names_the_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = family("llama", "float64")
    drafter = random_drafter(tmp_path, made)
    with torch.no_grad():
        drafter.model.norm.weight[0] = torch.nan
    engine = Engine(made.target, drafter)
    request = submit(engine, [1, 2, 3], make_policy("chain"), SamplingParams(8, end_ids=frozenset()))
    while engine.loop.step():
        engine.check_integrity()
    assert request.token_ids == made.greedy((1, 2, 3), 8)[0] and request.faulty_drafts == 6
    assert not any(one.drafted for one in request.rounds)
    place = f"request {request.id}: draft scores of position 4 are not finite"
    assert caplog.messages == [f"{place}: such rounds are decoded plainly"]
    assert drafter.pool.requests == () and engine.state.pool.requests == ()


@pytest.mark.parametrize("name", STAGE_NAMES)
def test_an_interrupt_leaves_the_engine_usable(name: str, tmp_path: Path) -> None:
    """Raised after any stage of the third step: everything is given back, and the next texts are right."""
    made = family("llama", "float64")
    drafter = random_drafter(tmp_path, made)
    engine = Engine(made.target, drafter)
    prompts = [list(range(5)), list(range(9, 30))]
    expected = [made.greedy(tuple(prompt), 12)[0] for prompt in prompts]

    def interrupting(stages: Stages) -> Stages:
        stage, calls = getattr(stages, name), itertools.count(1)

        def run(*args: Any) -> Any:
            result = stage(*args)
            if next(calls) == 3:
                raise KeyboardInterrupt
            return result

        return replace(stages, **{name: run})

    with engine.loop.watching(interrupting), pytest.raises(KeyboardInterrupt):
        engine.generate(prompts, policy="ddtree", budget=7, max_tokens=12)
    assert_empty(engine, drafter)
    results = engine.generate(prompts, policy="ddtree", budget=7, max_tokens=12)
    assert [result.token_ids for result in results] == expected


def assert_empty(engine: Engine, drafter: DFlashDrafter) -> None:
    for pool in (engine.state.pool, drafter.pool):
        pool.check_integrity()
        assert pool.requests == () and pool.free_rows == pool.kv_rows
    assert engine.loop.step() == []


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises, also where the tests were started in the background and ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("way", ["generate", "stream"])
def test_a_real_interrupt_reaches_the_reader_and_aborts(way: str, tmp_path: Path) -> None:
    """Ctrl-C while the main thread waits: the loop thread's step ends in peace, then all is given back."""
    made = family("llama", "float64")
    drafter = random_drafter(tmp_path, made)
    engine = Engine(made.target, drafter)
    calls = itertools.count(1)

    def interrupting(stages: Stages) -> Stages:
        def verify(*args: Any) -> Any:
            if next(calls) == 3:
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            return stages.verify(*args)

        return replace(stages, verify=verify)

    with engine.loop.watching(interrupting), pytest.raises(KeyboardInterrupt):
        if way == "generate":
            engine.generate([[1, 2, 3], [4, 5]], policy="ar", max_tokens=100)
        else:
            list(engine.stream([1, 2, 3], policy="ar", max_tokens=100))
    with engine.loop.paused():
        assert_empty(engine, drafter)
    assert 3 <= next(calls) < 50
    (result,) = engine.generate([[1, 2, 3]], policy="ddtree", max_tokens=12)
    assert result.token_ids == made.greedy((1, 2, 3), 12)[0]


BAD_PROMPTS: list[tuple[Any, str]] = [
    ([], "prompt of 0 tokens: expected at least one"),
    ([1] * (CONTEXT_LIMIT + 1), f"prompt of {CONTEXT_LIMIT + 1} tokens: expected at most {CONTEXT_LIMIT}"),
    ([1, VOCAB], f"prompt token id {VOCAB}: expected 0 to {VOCAB - 1}"),
    ([1, -1], f"prompt token id -1: expected 0 to {VOCAB - 1}"),
    ([1, 2**70], f"prompt token id {2**70}: expected 0 to {VOCAB - 1}"),
    ([1, 2.5], "prompt token id 2.5: expected an integer"),
    (["1"], "prompt token id '1': expected an integer"),
    ([[1, 2], [3]], "prompt token id [1, 2]: expected an integer"),
    ("text", "this engine has no tokenizer: give token ids"),
    (None, "prompt None: expected text, token ids or a list of messages"),
    (b"ab", "prompt b'ab': expected text, token ids or a list of messages"),
]


@pytest.mark.parametrize(("prompt", "message"), BAD_PROMPTS)
def test_bad_prompts_are_refused_before_anything_runs(prompt: Any, message: str) -> None:
    engine = Engine(family("llama", "float32").target)
    with pytest.raises(UsageError) as caught:
        engine.generate([[1, 2], prompt], policy="ar", max_tokens=4)
    place = "prompts[1]: " if isinstance(caught.value, RequestError) else ""
    assert str(caught.value) == place + message
    assert engine.loop.step() == [] and engine.state.pool.requests == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 0}, "max_tokens 0: expected at least 1"),
        ({"max_tokens": 2.5}, "max_tokens 2.5: expected a whole number"),
        ({"temperature": "1"}, "temperature '1': expected a finite number >= 0"),
        ({"seed": 1.5}, "seed 1.5: expected 0 to 2[*][*]63 - 1"),
        ({"temperature": -0.5}, "temperature -0.5: expected a finite number >= 0"),
        ({"temperature": float("nan")}, "temperature nan: expected a finite number >= 0"),
        ({"temperature": float("inf")}, "temperature inf: expected a finite number >= 0"),
        ({"seed": -1}, "seed -1: expected 0 to 2[*][*]63 - 1"),
        ({"policy": "beam"}, "policy 'beam': expected one of ar, chain, ddtree"),
        ({"policy": "ddtree", "budget": 1025}, "budget 1025: expected 0 to 1024"),
        ({"policy": "ddtree", "budget": -1}, "budget -1: expected 0 to 1024"),
        ({"policy": "chain", "budget": 3}, "option 'budget' is not used by policy chain: expected no options"),
        ({"policy": "ddtree", "budget": 3, "block_size": 9}, "block_size 9: expected 1 to 8"),
        ({"policy": "ddtree", "budget": 3, "block_size": 0}, "block_size 0: expected 1 to 8"),
        ({"policy": "ar", "block_size": 4}, "block_size 4: policy 'ar' does not use it"),
        ({"policy": "ddtree", "candidates": 0}, "candidates 0: expected 1 to 1024"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    play = Play()
    with pytest.raises(UsageError, match=message) as caught:
        play.engine.generate([[1, 2]], **{"policy": "ar", **options})
    assert "\n" not in str(caught.value)
    assert play.engine.loop.step() == []


def test_encoding_refuses_what_cannot_be_decoded() -> None:
    """So that whoever encodes many prompts first can name the bad one."""
    engine = Engine(family("llama", "float32").target)
    assert list(engine.encode((1, 2))) == [1, 2]
    with pytest.raises(RequestError, match=f"prompt of {CONTEXT_LIMIT + 1} tokens"):
        engine.encode([1] * (CONTEXT_LIMIT + 1))


def test_policies_need_their_parts() -> None:
    alone = Engine(family("llama", "float32").target)
    with pytest.raises(RequestError, match="policy 'auto' needs a drafter: name one with --drafter"):
        alone.generate([[1, 2]], policy="auto")
    with pytest.raises(RequestError, match="block_size 4: there is no drafter to use it"):
        alone.generate([[1, 2]], policy="ar", block_size=4)
    with pytest.raises(UsageError, match="expected a list of prompts, got one string"):
        alone.generate("text")
    with pytest.raises(UsageError, match="options budget: a policy object carries its own"):
        alone.generate([[1]], policy=make_policy("ar"), budget=4)
    play = Play()
    with pytest.raises(CostError, match="policy 'ratio' needs costs"):
        play.submit([5, 6], "ratio")
    assert play.engine.loop.step() == []


@pytest.mark.parametrize("name", ["prefill_chunk", "max_requests", "max_kv_rows"])
def test_an_engine_needs_room(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} 0: expected at least 1"):
        EngineConfig(**{name: 0})


def test_a_refused_request_leaves_running_ones_alone() -> None:
    play = Play()
    text = list(range(10, 50))
    request = play.submit(text, "ddtree", budget=7, max_tokens=20, end_ids=frozenset())
    for bad in ([], [64], [1] * 5000):
        play.engine.loop.step()
        with pytest.raises(RequestError):
            submit(play.engine, bad, make_policy("ar"), SamplingParams(4))
    play.finish()
    assert request.token_ids == text[:20]


def test_errors_have_one_root() -> None:
    for kind in (CostError, RequestError):
        assert issubclass(kind, UsageError)
    assert issubclass(NonFiniteLogitsError, DraftwoodError) and not issubclass(NonFiniteLogitsError, UsageError)
