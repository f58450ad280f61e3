"""One row of a prompt set: a JSON object in one of the forms that people keep prompts in."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core import is_text
from ..errors import UsageError

SETTINGS = ("max_tokens", "temperature", "seed")
"""Keys of a row that decide how it is decoded, where rows are decoded and not compared."""
REFUSED = (
    "stop", "stop_token_ids", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "logit_bias", "n", "best_of", "logprobs", "top_logprobs", "max_new_tokens", "max_completion_tokens", "min_tokens",
    "ignore_eos", "response_format", "tools", "tool_choice", "functions", "chat_template", "chat_template_kwargs",
    "policy", "drafter", "images", "image", "audio", "suffix", "echo", "stream",
)  # fmt: skip
"""Keys that would change the answer and are not honoured. All other keys are taken for notes about the row."""
_SHAREGPT = {
    "human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant",
    "system": "system",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row of a prompt set."""

    id: str
    text: str
    """The first user message, without chat template."""
    turns: tuple[str, ...] = ()
    """All user messages of a multi-turn row whose answers are to be made, the first included; empty otherwise."""
    messages: tuple[tuple[str, str], ...] = ()
    """(role, text) of a conversation that ends with the user's turn to be answered; empty for a lone `text`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """`max_tokens`, `temperature` and `seed` of this row."""


def parse_row(line: str, number: int, place: str) -> Prompt:
    """Read a row with `prompt` (text), `turns` (texts), `messages` (role, content) or ShareGPT's `conversations`.

    `system` goes before a lone `prompt`. A conversation that ends with an answer loses it: that is what is to be made.
    A row without `id` is called `number`. Raises UsageError, one line after `place`, for anything else, and for keys
    that would change the answer and are not honoured.
    """
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{place}: not JSON ({error})") from error
    if not isinstance(row, dict):
        raise UsageError(f"{place}: expected an object with `prompt`")
    given = {key: value for key, value in row.items() if value is not None}
    for key in REFUSED:
        if key in given:
            known = ", ".join(SETTINGS)
            raise UsageError(f"{place}: `{key}` is not honoured in a row: expected {known}, or none of the kind")
    name = row.get("id", number)
    if not isinstance(name, str | int) or isinstance(name, bool):
        raise UsageError(f"{place}: `id` {json.dumps(name)} must be text or a whole number")
    settings = {key: _setting(key, given[key], place) for key in SETTINGS if key in given}
    forms = [key for key in ("messages", "conversations") if key in given]
    if isinstance(given.get("prompt"), list):
        forms.append("prompt")
    elif forms and "prompt" in given:
        raise UsageError(f"{place}: `prompt` and `{forms[0]}`: expected one of the two")
    if len(forms) > 1 or (forms and "turns" in given):
        raise UsageError(f"{place}: `{forms[0]}` and `{[*forms, 'turns'][1]}`: expected one of the two")
    if forms:
        messages = _messages(given[forms[0]], f"{place}: `{forms[0]}`")
        if "system" in given:
            raise UsageError(f"{place}: `system` and `{forms[0]}`: expected a message with that role")
        return Prompt(str(name), messages[-1][1], messages=messages, settings=settings)
    turns = given.get("turns") or []
    if not isinstance(turns, list) or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise UsageError(f"{place}: `turns` must be a list of texts")
    text = given.get("prompt", turns[0] if turns else None)
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"{place}: no `prompt` text")
    _check_text([text, *turns], place)
    messages = ()
    if "system" in given:
        system = given["system"]
        if not isinstance(system, str) or len(turns) > 1:
            raise UsageError(f"{place}: `system` must be text, beside a lone `prompt`")
        _check_text([system], place)
        messages = (("system", system), ("user", text))
    return Prompt(str(name), text, tuple(turns), messages, settings)


def _messages(value: Any, place: str) -> tuple[tuple[str, str], ...]:
    """(role, text) of a list of messages, answers at the end left out."""
    if not isinstance(value, list) or not value:
        raise UsageError(f"{place} must be a list of messages")
    found: list[tuple[str, str]] = []
    for index, message in enumerate(value):
        if not isinstance(message, dict):
            raise UsageError(f"{place}[{index}]: expected an object with role and content")
        if "from" in message:
            role, text = _SHAREGPT.get(message["from"]), message.get("value")
        else:
            role, text = message.get("role"), message.get("content")
        if not isinstance(role, str) or not isinstance(text, str):
            raise UsageError(f"{place}[{index}]: expected role and content (text), or ShareGPT's from and value")
        further = sorted(set(message) - {"from", "value", "role", "content", "weight"})
        if further and message[further[0]] is not None:
            raise UsageError(f"{place}[{index}]: `{further[0]}` of a message is not honoured")
        found.append((role, text))
    _check_text([text for _, text in found], place)
    while found and found[-1][0] == "assistant":
        found.pop()
    if not found or found[-1][0] != "user" or not found[-1][1].strip():
        raise UsageError(f"{place}: expected a user's message at the end, to be answered")
    return tuple(found)


def _setting(key: str, value: Any, place: str) -> int | float:
    if key == "temperature":
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0:
            return float(value)
        raise UsageError(f"{place}: `temperature` {json.dumps(value)}: expected a number of at least 0")
    least = 1 if key == "max_tokens" else 0
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return value
    raise UsageError(f"{place}: `{key}` {json.dumps(value)}: expected a whole number of at least {least}")


def _check_text(texts: Sequence[str], place: str) -> None:
    if not all(is_text(text) for text in texts):
        raise UsageError(f"{place}: half a surrogate pair is no text")
