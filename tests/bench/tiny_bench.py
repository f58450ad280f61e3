"""A tiny random target with a drafter that knows the text, and a made cost profile: engines that decode in no time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from families import VOCAB, family, healthy
from stub_drafter import KnowingDrafter

from draftwood.cost.profile import CostProfile
from draftwood.draft.base import Committed, DraftRequest
from draftwood.engine import Engine, EngineConfig
from draftwood.prompts.units import Unit

TOKENS = 40
LENGTHS = (5, 23, 12)


def units(set_name: str = "toy", lengths: Sequence[int] = LENGTHS) -> list[Unit]:
    """Prompts of the tiny Llama whose greedy text is varied and never near a tie."""
    return [Unit(set_name, f"p{i}", healthy("llama", "float64", n, TOKENS)[0]) for i, n in enumerate(lengths)]


def text_of(prompt_ids: Sequence[int]) -> list[int]:
    """What transformers' own greedy generation appends to a prompt of `units`, known by its length."""
    prompt, text = healthy("llama", "float64", len(prompt_ids), TOKENS)
    assert prompt == tuple(prompt_ids)
    return list(text)


class ReadingDrafter(KnowingDrafter):
    """Knows a request by the length of its prompt, so that any run of these units can be drafted for.

    Its luck depends on the prompt and the position alone, whatever request it is and whoever ran before.
    """

    def __init__(self, known: Sequence[Unit]) -> None:
        super().__init__(VOCAB)
        self.known = {len(unit.prompt_ids): [*unit.prompt_ids, *text_of(unit.prompt_ids)] for unit in known}

    def open(self, request: int, token_ids: np.ndarray, rows: int) -> None:
        length = next(n for n, text in self.known.items() if text[:n] == token_ids[:n].tolist())
        self.know(request, self.known[length], length)
        super().open(request, token_ids[:length], rows)  # after a preemption a sampled text is known too

    def commit(self, committed: Committed) -> None:
        """As for its kind, but sampled texts leave the greedy one."""
        offsets = committed.offsets.tolist()
        for request, start, stop in zip(committed.requests, offsets, offsets[1:], strict=False):
            assert committed.taps is not None
            self.taps[request].append(committed.taps[start:stop].clone())

    def _check(self, request: DraftRequest) -> None:
        """Sampled texts leave the greedy one: only the context must have no hole."""
        assert request.context_len == self.rows(request.request), "the drafter's context has a hole"

    def close(self, request: int) -> None:
        super().close(request)
        self.texts.pop(request, None)


class TinyCodec:
    """Names of units as texts: `p0` is the first unit's prompt; a token decodes to one sign, 40 to an end."""

    end_ids = (40,)
    raw_end_ids: tuple[int, ...] = ()

    def __init__(self, known: Sequence[Unit]) -> None:
        self.known = {unit.prompt_id: list(unit.prompt_ids) for unit in known}
        self.tokenizer = SimpleNamespace(decode=lambda ids: self.decode(ids))
        self.asked: list[Any] = []

    def encode(self, prompt: str, *, raw: bool = False, system: str | None = None) -> list[int]:
        self.asked.append((prompt, raw, system))
        return self.known[prompt]

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        self.asked.append(list(messages))
        return self.known[messages[-1][1]]

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(chr(33 + int(token)) for token in ids)

    def stream(self) -> Any:
        return SimpleNamespace(push=self.decode, finish=lambda: "")


def engine(
    known: Sequence[Unit] | None = None, profile: CostProfile | None = None, live: bool = False, codec: bool = False
) -> Engine:
    """A fresh engine of the tiny pair."""
    known = units() if known is None else known
    made = family("llama", "float64")
    text: Any = TinyCodec(known) if codec else None
    config = EngineConfig(prefill_chunk=64)
    return Engine(
        made.target, ReadingDrafter(known), codec=text, config=config, profile=profile, live_costs=live, threads=1
    )


def profile(slope_s: float = 2e-4) -> CostProfile:
    """An affine cost: 10 ms and `slope_s` a row; drafting 2 ms."""
    rows = np.array([1, 2, 4, 8, 16, 32, 64, 65, 128])
    return CostProfile.from_json(
        {
            "schema": 1,
            "source": "made for tests",
            "dtype": "float64",
            "rows": rows.tolist(),
            "contexts": [16, 128],
            "verify_s": [(0.010 + slope_s * rows).tolist(), (0.011 + slope_s * rows).tolist()],
            "draft_s": 0.002,
            "host_s": None,
            "mean_gains": [0.7, 0.4, 0.2, 0.1, 0.05],
        }
    )
