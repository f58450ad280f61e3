"""Prompt sets: JSONL files of prompts, and the small sets that come with the package."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from ..errors import UsageError
from ..files import decoded
from .rows import Prompt, parse_row

BUNDLED_SETS = ("gsm8k_like", "code", "chat")
"""What commands take when no set is named."""
NAMED_SETS = (*BUNDLED_SETS, "copying")
"""All sets of the package; `copying` asks for texts that stand in the prompt."""


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Prompts under one name."""

    name: str
    """File stem, or the name of a bundled set."""
    prompts: tuple[Prompt, ...]
    bundled: bool


def load_prompts(name_or_path: str | os.PathLike[str], limit: int | None = None) -> PromptSet:
    """Read the bundled set of that name, or a JSONL file: a row, see `parse_row`, on each line.

    At most `limit` prompts are kept. Blank lines are skipped. Raises `UsageError`, one line, for an unknown name, a
    file that cannot be read, a line that is no such object (with its number), an empty set, or a limit below 1.
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
        text = decoded(line, f"prompt set {source}:{number}")
        if text.strip():
            prompts.append(parse_row(text, number, f"prompt set {source}:{number}"))
    if not prompts:
        raise UsageError(f"prompt set {source}: empty, expected one JSON object a line")
    return PromptSet(source if bundled else Path(source).stem, tuple(prompts), bundled)


def in_turn(sets: Sequence[PromptSet]) -> list[tuple[str, Prompt]]:
    """(set name, prompt) of all prompts: the first of each set, then the second of each, and so on."""
    longest = max((len(prompts.prompts) for prompts in sets), default=0)
    return [
        (prompts.name, prompts.prompts[at]) for at in range(longest) for prompts in sets if at < len(prompts.prompts)
    ]
