"""What a caller hands over as a prompt, and its settings, as what a request needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeAlias, cast

import numpy as np

from ..core import is_text
from ..draft.base import Drafter
from ..errors import RequestError, UsageError
from ..models.base import TargetSpec
from ..models.text import TextCodec
from ..policy import Policy
from .requests import SamplingParams

Message: TypeAlias = Mapping[str, str]
"""One turn of a conversation: `role` and `content`."""
Prompt: TypeAlias = str | Sequence[int] | Sequence[Message]
"""Text, token ids, or a conversation."""
_PARAMS = frozenset(item.name for item in fields(SamplingParams))


def encode(codec: TextCodec | None, prompt: Prompt, *, raw: bool, system: str | None) -> list[int]:
    """Token ids of a prompt, not yet checked against a model. Raises RequestError or UsageError."""
    if isinstance(prompt, str):
        if not prompt:
            raise RequestError("prompt '': expected at least one character")
        if not is_text(prompt):
            raise RequestError(f"prompt {prompt!r}: half a surrogate pair is no text")
        return _required(codec).encode(prompt, raw=raw, system=system)
    if isinstance(prompt, bytes) or not hasattr(prompt, "__len__"):
        raise RequestError(f"prompt {prompt!r}: expected text, token ids or a list of messages")
    if not len(prompt) or not isinstance(prompt[0], Mapping):
        return list(cast("Sequence[int]", prompt))
    if raw or system is not None:
        raise UsageError("a conversation takes neither raw nor system: its messages say it all")
    turns = []
    for message in cast("Sequence[Any]", prompt):
        if not isinstance(message, Mapping) or set(message) != {"role", "content"}:
            raise RequestError(f"message {message!r}: expected an object with role and content")
        if not (isinstance(message["content"], str) and is_text(message["content"])):
            raise RequestError(f"message content {message['content']!r}: expected text")
        turns.append((str(message["role"]), message["content"]))
    return _required(codec).encode_chat(turns)


def checked_ids(prompt_ids: Sequence[int], spec: TargetSpec, limit: int) -> np.ndarray:
    """(P,) int64, at most `limit` ids that the model has. Raises RequestError."""
    if len(prompt_ids) == 0:
        raise RequestError("prompt of 0 tokens: expected at least one")
    if len(prompt_ids) > limit:
        pool = "" if limit == spec.context_limit else ", the rows of the KV pool; see --kv-memory"
        raise RequestError(f"prompt of {len(prompt_ids)} tokens: expected at most {limit}{pool}")
    for token in prompt_ids:
        if isinstance(token, bool) or not isinstance(token, int | np.integer):
            raise RequestError(f"prompt token id {token!r}: expected an integer")
        if not 0 <= token < spec.embedding_rows:
            raise RequestError(f"prompt token id {token}: expected 0 to {spec.embedding_rows - 1}")
    return np.array(prompt_ids, dtype=np.int64)


def checked_block_size(block_size: int | None, policy: Policy, drafter: Drafter | None) -> int:
    """Rows of a request's blocks: those asked for, else all that the drafter has. Raises RequestError."""
    if drafter is None:
        if block_size is not None:
            raise RequestError(f"block_size {block_size}: there is no drafter to use it")
        return 1
    if block_size is None:
        return drafter.block_size
    if not policy.drafts:
        raise RequestError(f"block_size {block_size}: policy {policy.name!r} does not use it")
    if not 1 <= block_size <= drafter.block_size:
        raise RequestError(f"block_size {block_size}: expected 1 to {drafter.block_size}")
    return block_size


def split_settings(settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keyword arguments of a call as (fields of SamplingParams, options of a policy)."""
    asked = {name: value for name, value in settings.items() if name in _PARAMS}
    return asked, {name: value for name, value in settings.items() if name not in _PARAMS}


def params_of(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int, asked: dict[str, Any], default: SamplingParams
) -> list[SamplingParams]:
    """Params of each of `count` prompts, `default` where there are none, single fields replaced."""
    if params is None:
        params = default
    each = [params] * count if isinstance(params, SamplingParams) else list(params)
    if len(each) != count:
        raise UsageError(f"{len(each)} params for {count} prompts: expected one for all, or one for each")
    return [replace(one, **asked) for one in each] if asked else each


def _required(codec: TextCodec | None) -> TextCodec:
    if codec is None:
        raise UsageError("this engine has no tokenizer: give token ids")
    return codec
