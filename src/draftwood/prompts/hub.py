"""Prompt sets by name: bundled ones, files, and data sets of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..errors import UsageError
from .rows import Prompt
from .sets import NAMED_SETS, PromptSet, load_prompts

HUB_PREFIX = "hub:"
PROMPT_COLUMNS = ("prompt", "question", "problem", "instruction", "turns", "text")


class HubName(NamedTuple):
    """hub:OWNER/NAME[:CONFIG[:SPLIT[:COLUMN]]]."""

    name: str
    config: str | None
    split: str
    column: str | None


def split_names(arguments: Sequence[str]) -> list[str]:
    """Names of `--prompts`: each argument is a file as it is, or names separated by commas."""
    names: list[str] = []
    for argument in arguments:
        names += [argument] if Path(argument).exists() else [name for name in argument.split(",") if name]
    return names


def load_sets(names: Sequence[str], limit: int | None = None) -> list[PromptSet]:
    """Load every named set, `limit` prompts each; raises UsageError, one line, for the first that cannot be used."""
    if not names:
        raise UsageError(f"no prompt set: expected a JSONL file, hub:OWNER/NAME, or one of {', '.join(NAMED_SETS)}")
    sets = [load_hub(name, limit) if name.startswith(HUB_PREFIX) else load_prompts(name, limit) for name in names]
    stems = [prompts.name for prompts in sets]
    if len(set(stems)) != len(stems):
        raise UsageError(f"prompt sets {', '.join(stems)}: results are told apart by these names, each once")
    return sets


def parse_hub(text: str) -> HubName:
    """Read `hub:OWNER/NAME[:CONFIG[:SPLIT[:COLUMN]]]`; the split is `test` unless given."""
    parts = text.removeprefix(HUB_PREFIX).split(":")
    if not parts[0] or len(parts) > 4:
        raise UsageError(f"prompt set {text!r}: expected hub:OWNER/NAME[:CONFIG[:SPLIT[:COLUMN]]]")
    config, split, column = [*parts[1:], "", "", ""][:3]
    return HubName(parts[0], config or None, split or "test", column or None)


def load_hub(text: str, limit: int | None = None) -> PromptSet:
    """Prompts of a hub data set, by the package `datasets`.

    The column is the given one or the first of prompt, question, problem, instruction, turns, text. Raises UsageError
    when the package is absent, the set cannot be loaded, or holds no such column.
    """
    wanted = parse_hub(text)
    try:
        import datasets  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise UsageError(f"prompt set {text}: needs the package datasets: pip install datasets") from error
    try:
        rows = datasets.load_dataset(wanted.name, wanted.config, split=wanted.split)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"prompt set {text}: cannot be loaded ({reason[:200]})") from error
    columns = (wanted.column,) if wanted.column else PROMPT_COLUMNS
    column = next((name for name in columns if name in rows.column_names), None)
    if column is None:
        raise UsageError(
            f"prompt set {text}: no column {' or '.join(map(str, columns))} in {', '.join(rows.column_names)}"
        )
    prompts: list[Prompt] = []
    for number, row in enumerate(rows, start=1):
        if limit is not None and len(prompts) == limit:
            break
        value = row[column]
        turns = tuple(value) if isinstance(value, list) else (value,)
        if not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
            raise UsageError(f"prompt set {text}, row {number}: `{column}` is no text")
        prompts.append(Prompt(str(row.get("id", number)), turns[0], turns if len(turns) > 1 else ()))
    if not prompts:
        raise UsageError(f"prompt set {text}: empty")
    return PromptSet(wanted.name.rpartition("/")[2], tuple(prompts), bundled=False)
