"""Thinking mode: drafters are mostly trained on answers without it, and a template may open it unasked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from .examine import Finding, Gain
from .forced import Scores

TAGS = (("<think>", "</think>"), ("<thinking>", "</thinking>"), ("[THINK]", "[/THINK]"))


class ThinkingCodec(Protocol):
    """What is needed of the text layer."""

    def encode(self, prompt: str) -> list[int]:
        """A prompt through the chat template, thinking off."""
        ...

    def encode_plain(self, text: str) -> list[int]:
        """Text alone."""
        ...

    def render(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens included."""
        ...


class Measured(NamedTuple):
    """Scores of one rendering of the prompts."""

    scores: Scores
    texts: np.ndarray
    """(positions,) number of the text of each position."""

    def text_means(self) -> np.ndarray:
        """(texts,) mean log-probability of each text."""
        logp = self.scores.logp.mean(axis=1)
        return np.array([logp[self.texts == text].mean() for text in np.unique(self.texts)])


def open_tag(rendered: str) -> tuple[str, str] | None:
    """The thinking tags that a rendered prompt leaves open; None when it opens none."""
    for start, end in TAGS:
        if rendered.rfind(start) > rendered.rfind(end):
            return start, end
    return None


def closed_prompts(codec: ThinkingCodec, prompts: Sequence[str]) -> list[list[int]] | None:
    """The prompts' ids with an empty thought behind them; None when the template leaves thinking closed."""
    encoded = [codec.encode(prompt) for prompt in prompts]
    closed: list[list[int]] = []
    for ids in encoded:
        tag = open_tag(codec.render(ids))
        if tag is None:
            return None
        closed.append([*ids, *codec.encode_plain(f"\n{tag[1]}\n\n")])
    return closed


def thinking_finding(
    codec: ThinkingCodec, prompts: Sequence[str], measure: Callable[[Sequence[Sequence[int]]], Measured]
) -> Finding | None:
    """What closing the thought is worth: the target answers both renderings, and both answers are scored.

    None when the template does not open thinking. The answers are different texts, so the gain is not paired: its
    standard error comes from the spread between texts.
    """
    closed = closed_prompts(codec, prompts)
    if closed is None:
        return None
    now, repaired = measure([codec.encode(prompt) for prompt in prompts]), measure(closed)
    means = now.text_means(), repaired.text_means()
    error = float(np.sqrt(sum(np.var(mean, ddof=1) / len(mean) for mean in means)))
    gain = Gain(float(means[1].mean() - means[0].mean()), error)
    hit_gain = float(repaired.scores.hit.mean() - now.scores.hit.mean())
    repair = "the template opens a thought although thinking is off: an empty thought behind the prompt"
    return Finding("thinking mode", repair, gain, hit_gain, len(now.texts))
