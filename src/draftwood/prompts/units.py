"""What a run decodes: prompts as token ids, one turn at a time, the same ids for every row of a comparison."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..errors import UsageError
from .rows import Prompt
from .sets import PromptSet

Answer = Callable[[Sequence[int]], str]
"""Prompt ids -> the reference policy's text: the history of later turns."""


class PromptCodec(Protocol):
    """What rendering needs of the text layer."""

    def encode(self, prompt: str, *, raw: bool = False, system: str | None = None) -> list[int]:
        """Ids of a prompt as it is (`raw`), or as the only turn of a chat."""

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """Ids of (role, text) messages in the chat template, ready for the assistant's turn."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One prompt, or one turn of a conversation, rendered."""

    set_name: str
    prompt_id: str
    """`id` of the prompt; turns behind the first have `#2`, `#3`, ... appended."""
    prompt_ids: tuple[int, ...]

    @property
    def prompt_hash(self) -> str:
        """SHA-256 of the ids: a template that writes today's date shows here."""
        return hash_prompt(self.prompt_ids)


@dataclass(frozen=True, slots=True)
class Rendering:
    """How prompts become ids."""

    raw: bool = False
    """No chat template."""
    system: str | None = None
    """System message of the chat template."""


def hash_prompt(prompt_ids: Sequence[int] | np.ndarray) -> str:
    """SHA-256, in hex, of the rendered prompt ids as little-endian int64: tells two renderings apart."""
    return hashlib.sha256(np.asarray(prompt_ids, dtype="<i8").tobytes()).hexdigest()


def encode_prompt(codec: PromptCodec, prompt: Prompt, rendering: Rendering) -> list[int]:
    """Ids of a row's first turn, or of its whole conversation. Raises UsageError where `rendering` contradicts it."""
    if not prompt.messages:
        return codec.encode(prompt.text, raw=rendering.raw, system=rendering.system)
    if rendering.raw:
        raise UsageError(f"prompt {prompt.id}: its messages need the chat template, leave out --raw")
    if rendering.system is not None:
        raise UsageError(f"prompt {prompt.id}: has messages of its own, leave out --system")
    return codec.encode_chat(prompt.messages)


def render(
    sets: Sequence[PromptSet], codec: PromptCodec, answer: Answer, rendering: Rendering | None = None
) -> list[Unit]:
    """Every turn of every prompt as ids, in order.

    The history of a later turn is what `answer`, one reference policy, says to the earlier ones: never what the row
    that ran last said. Raises UsageError for an unusable template, for conversations with `raw` and for two sets, or
    two prompts of a set, of one name.
    """
    rendering = rendering or Rendering()
    _check_names([prompts.name for prompts in sets], "prompt set")
    units = []
    for prompts in sets:
        _check_names([prompt.id for prompt in prompts.prompts], f"prompt set {prompts.name}: id")
        for prompt in prompts.prompts:
            if prompt.settings:
                raise UsageError(
                    f"prompt {prompts.name}/{prompt.id}: its `{next(iter(prompt.settings))}` cannot be honoured "
                    "where runs "
                    "are compared: only generate decodes rows as they ask"
                )
            ids = encode_prompt(codec, prompt, rendering)
            units.append(Unit(prompts.name, prompt.id, tuple(ids)))
            turns = len(prompt.turns)
            if turns > 1 and rendering.raw:
                raise UsageError(f"prompt {prompt.id}: its {turns} turns need the chat template, leave out --raw")
            messages = [("system", rendering.system)] if rendering.system is not None else []
            messages += [("user", turn) for turn in prompt.turns[:1]]
            for number, turn in enumerate(prompt.turns[1:], start=2):
                messages += [("assistant", answer(ids)), ("user", turn)]
                ids = codec.encode_chat(messages)
                units.append(Unit(prompts.name, f"{prompt.id}#{number}", tuple(ids)))
    return units


def _check_names(names: Sequence[str], what: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"{what} {twice[0]!r} appears twice: results are told apart by it")
