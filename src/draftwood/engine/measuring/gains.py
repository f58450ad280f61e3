"""Mean sorted gains on the bundled prompts: what `cast` chooses its width from, and what `auto` expects at first."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib.resources import files

import numpy as np

from ...models.text import TextCodec
from .stand import Stand

PROMPT_SETS = ("gsm8k_like", "code", "chat")
GAIN_CANDIDATES = 8
GAIN_WIDTH = 16
"""Nodes verified while gains are collected: the rounds that are visited depend on it."""


def bundled_prompts(count: int) -> list[str]:
    """The first `count` prompts, taken from the bundled sets in turn."""
    folder = files("draftwood").joinpath("data", "prompts")
    texts = [folder.joinpath(f"{name}.jsonl").read_text(encoding="utf-8").splitlines() for name in PROMPT_SETS]
    return [json.loads(line)["prompt"] for row in zip(*texts, strict=False) for line in row][:count]


def encoded_prompts(codec: TextCodec, count: int, embedding_rows: int) -> list[list[int]]:
    """Token ids of the bundled prompts, with the chat template where it takes them; ids that the model has only."""
    encoded = [codec.encode_own(prompt) for prompt in bundled_prompts(count)]
    return [[token_id for token_id in ids if token_id < embedding_rows] for ids in encoded]


def mean_sorted(rounds: Sequence[np.ndarray], size: int) -> np.ndarray:
    """Return (size,): the mean over rounds of the n-th sorted gain, 0 where a round has none."""
    total = np.zeros(size)
    for gains in rounds:
        count = min(size, len(gains))
        total[:count] += gains[:count]
    return total / len(rounds)


def collect_gains(
    stand: Stand,
    prompts: Sequence[Sequence[int]],
    *,
    tokens: int,
    end_ids: frozenset[int],
    max_nodes: int,
    until: Callable[[], bool] = lambda: False,
) -> np.ndarray | None:
    """Decode `prompts` and return their mean gains, (max_nodes,); None when `until()` came true before any round."""
    rounds = stand.gains(
        prompts, tokens, end_ids, width=min(GAIN_WIDTH, max_nodes), candidates=GAIN_CANDIDATES, until=until
    )
    return mean_sorted(rounds, max_nodes) if rounds else None
