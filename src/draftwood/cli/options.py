"""Options that more than one command takes, and the parsers behind them: a wrong value is named in one line."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UsageError

if TYPE_CHECKING:
    from ..models.chat import ChatSettings


class Dtype(str, Enum):
    """Number types of a run."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT64 = "float64"


class Switch(str, Enum):
    """A part that can be turned on or off."""

    ON = "on"
    OFF = "off"


MOST = 10**9
"""Largest count of anything: no run of more tokens, prompts or rows ends in a lifetime."""


def integer(text: str) -> int:
    """Parse a whole number that fits 64 bits; the error names what was given."""
    try:
        value = int(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a whole number") from error
    if abs(value) >= 2**63:
        raise typer.BadParameter(f"{text} is out of range, expected a number of 64 bits")
    return value


def at_least_one(text: str) -> int:
    """Parse a whole number that is at least 1."""
    return _count(text, MOST)


def few(text: str) -> int:
    """Parse how often something is done: few enough to live to see the end."""
    return _count(text, 1000)


def _count(text: str, most: int) -> int:
    value = integer(text)
    if value < 1:
        raise typer.BadParameter(f"{value} is out of range, expected at least 1")
    if value > most:
        raise typer.BadParameter(f"{value} is out of range, expected at most {most}")
    return value


def number(text: str) -> float:
    """Parse a number; the error names what was given."""
    try:
        return float(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a number") from error


# The pair, and where it runs.
ModelArgument = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="A Hugging Face id, a local folder, a .gguf file or demo:smollm2."),
]
DrafterOption = Annotated[
    str | None,
    typer.Option(
        "--drafter",
        metavar="D",
        help="A DFlash drafter (folder or Hugging Face id), suffix, bundled, or several joined by +.",
    ),
]
DtypeOption = Annotated[Dtype, typer.Option("--dtype", help="Number type of weights and arithmetic.")]
DeviceOption = Annotated[str, typer.Option("--device", help="Where to run: cpu, cuda, cuda:1, ...")]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads",
        parser=at_least_one,
        metavar="N",
        help="CPU threads; default: what cores, affinity and cgroup quota allow.",
    ),
]

KvMemoryOption = Annotated[
    str | None,
    typer.Option(
        "--kv-memory",
        metavar="SIZE",
        help="Memory of the KV pools: a share of what is free (0.5, 50%) or bytes (800MB, 2GiB); default: half of it.",
    ),
]

# Costs.
ProfileOption = Annotated[
    Path | None,
    typer.Option("--profile", metavar="FILE", help="Costs measured by `draftwood profile`; default: a quick probe."),
]
StaleOption = Annotated[
    bool, typer.Option("--allow-stale-profile", help="Use costs of another machine, setting or pair.")
]
LiveCostsOption = Annotated[
    bool, typer.Option("--live-costs/--no-live-costs", help="Correct the costs while decoding.")
]

# Prompts, and how they become token ids.
PromptsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--prompts",
        metavar="SETS",
        help="JSONL files, bundled sets or hub:OWNER/NAME; commas between names, or the option again.",
    ),
]
LimitOption = Annotated[
    int | None, typer.Option("--limit", parser=integer, metavar="N", help="Prompts of each set; default: all.")
]
RawOption = Annotated[bool, typer.Option("--raw", help="Do not apply the chat template.")]
TemplateOption = Annotated[
    str | None,
    typer.Option("--chat-template", metavar="NAME|FILE", help="One of the model's templates, or a file with one."),
]
TemplateKwargsOption = Annotated[
    str | None,
    typer.Option("--chat-template-kwargs", metavar="JSON", help='For the template, as {"enable_thinking": true}.'),
]
ParseSpecialOption = Annotated[
    bool, typer.Option("--parse-special", help="Text that spells a special token becomes that token.")
]
GenerationOption = Annotated[
    str | None,
    typer.Option(
        "--generation-config",
        metavar="none|model",
        help="model: sample by default as the checkpoint asks; none: leave its settings aside; default: name them.",
    ),
]
SystemOption = Annotated[str | None, typer.Option("--system", help="System message of the chat template.")]

# The tree; what one policy takes is made from its options, in `policies`.
BudgetsOption = Annotated[
    str | None, typer.Option("--budgets", metavar="N,N,...", help="One ddtree row for each of these budgets.")
]
CandidatesOption = Annotated[
    int | None, typer.Option("--candidates", parser=integer, metavar="K", help="Candidates per depth of a tree.")
]
BlockOption = Annotated[
    int | None, typer.Option("--block-size", parser=at_least_one, metavar="N", help="Rows of a drafter block.")
]

# Sampling and length.
MaxTokensOption = Annotated[
    int, typer.Option("--max-tokens", parser=at_least_one, metavar="N", help="Longest answer in tokens.")
]
TemperatureOption = Annotated[
    float, typer.Option("--temperature", parser=number, metavar="T", help="0 is greedy; above 0 samples exactly.")
]
SeedOption = Annotated[int, typer.Option("--seed", parser=integer, metavar="N", help="Seed of sampling.")]

# Output.
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def chat_settings(template: str | None, kwargs: str | None, parse_special: bool) -> ChatSettings | None:
    """What the options on chat templates say; None for nothing. Raises UsageError for kwargs that are no JSON "
    "object."""
    if template is None and kwargs is None and not parse_special:
        return None
    from ..models.chat import ChatSettings

    if kwargs is None:
        return ChatSettings(template, {}, parse_special)
    try:
        found = json.loads(kwargs)
    except ValueError as error:
        raise UsageError(f"--chat-template-kwargs {kwargs!r}: not JSON ({error})") from error
    if not isinstance(found, dict):
        raise UsageError(f"--chat-template-kwargs {kwargs!r}: expected a JSON object")
    return ChatSettings(template, found, parse_special)
