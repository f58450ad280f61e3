"""Prompt sets: JSONL files of prompts, and the small sets that come with the package."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from ..core import is_text
from ..errors import UsageError

BUNDLED_SETS = ("gsm8k_like", "code", "chat")
"""What commands take when no set is named."""
NAMED_SETS = (*BUNDLED_SETS, "copying")
"""All sets of the package; `copying` asks for texts that stand in the prompt."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row of a prompt set."""

    id: str
    text: str
    """The first user message, without chat template."""
    turns: tuple[str, ...] = ()
    """All user messages of a multi-turn row, the first included; empty otherwise."""


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Prompts under one name."""

    name: str
    """File stem, or the name of a bundled set."""
    prompts: tuple[Prompt, ...]
    bundled: bool


def load_prompts(name_or_path: str | os.PathLike[str], limit: int | None = None) -> PromptSet:
    """Read the bundled set of that name, or a JSONL file: an object a line with `prompt`, and maybe `id` and `turns`.

    At most `limit` prompts are kept. Blank lines are skipped; a row without `id` is called by its line number; a row
    with `turns` alone takes the first as its prompt. Raises `UsageError`, one line, for an unknown name, a file that
    cannot be read, a line that is no such object (with its number), an empty set, or a limit below 1.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"limit {limit}: expected at least 1")
    source = os.fspath(name_or_path)
    bundled = source in NAMED_SETS
    try:
        data = files("draftwood").joinpath("data", "prompts", f"{source}.jsonl") if bundled else Path(source)
        raw = data.read_bytes()
    except OSError as error:
        names = ", ".join(NAMED_SETS)
        raise UsageError(f"prompt set {source}: {error.strerror} (a JSONL file, or one of {names})") from error
    prompts: list[Prompt] = []
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if limit is not None and len(prompts) == limit:
            break
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(f"prompt set {source}:{number}: not UTF-8") from error
        if text.strip():
            prompts.append(_parse(text, number, f"{source}:{number}"))
    if not prompts:
        raise UsageError(f"prompt set {source}: empty, expected one JSON object a line")
    return PromptSet(source if bundled else Path(source).stem, tuple(prompts), bundled)


def in_turn(sets: Sequence[PromptSet]) -> list[tuple[str, Prompt]]:
    """(set name, prompt) of all prompts: the first of each set, then the second of each, and so on."""
    longest = max((len(prompts.prompts) for prompts in sets), default=0)
    return [
        (prompts.name, prompts.prompts[at]) for at in range(longest) for prompts in sets if at < len(prompts.prompts)
    ]


def _parse(line: str, number: int, place: str) -> Prompt:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"prompt set {place}: not JSON ({error})") from error
    if not isinstance(row, dict):
        raise UsageError(f"prompt set {place}: expected an object with `prompt`")
    turns = row.get("turns") or []
    if not isinstance(turns, list) or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise UsageError(f"prompt set {place}: `turns` must be a list of texts")
    text = row.get("prompt", turns[0] if turns else None)
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"prompt set {place}: no `prompt` text")
    if not all(is_text(piece) for piece in (text, *turns)):
        raise UsageError(f"prompt set {place}: half a surrogate pair is no text")
    name = row.get("id", number)
    if not isinstance(name, str | int) or isinstance(name, bool):
        raise UsageError(f"prompt set {place}: `id` {json.dumps(name)} must be text or a whole number")
    return Prompt(str(name), text, tuple(turns))
