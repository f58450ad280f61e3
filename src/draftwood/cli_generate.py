"""`draftwood generate`: decode one prompt and stream its text."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from .cli_io import notice, read_argument, read_prompt, stdout_for_results, write, write_json
from .cli_load import (
    DeviceOption,
    DrafterOption,
    Dtype,
    DtypeOption,
    LiveCostsOption,
    LoadOptions,
    ModelArgument,
    ProfileOption,
    StaleOption,
    Switch,
    ThreadsOption,
    at_least_one,
    check_pair,
    integer,
    load_engine,
    number,
    waiting_for,
)
from .errors import UsageError

if TYPE_CHECKING:
    from . import Engine, Generation

DEFAULT_POLICY = "auto"
BUDGET_POLICY = "ddtree"

PromptArgument = Annotated[str, typer.Argument(metavar="PROMPT", help="The prompt as it is; - reads standard input.")]
PolicyOption = Annotated[
    str | None,
    typer.Option(
        "--policy", help=f"Rule that sizes the tree; default: {DEFAULT_POLICY}, {BUDGET_POLICY} with --budget."
    ),
]
BudgetOption = Annotated[
    int | None, typer.Option("--budget", parser=integer, metavar="N", help="Nodes of every tree (ddtree), 0 to 1024.")
]
BlockOption = Annotated[
    int | None, typer.Option("--block-size", parser=at_least_one, metavar="N", help="Rows of a drafter block.")
]
CandidatesOption = Annotated[
    int | None, typer.Option("--candidates", parser=integer, metavar="K", help="Candidates per depth.")
]
MaxNodesOption = Annotated[
    int | None, typer.Option("--max-nodes", parser=integer, metavar="N", help="Largest tree (cost-aware policies).")
]
RateOption = Annotated[
    str | None, typer.Option("--rate", metavar="RATE", help="Price of a second (auto): local, mixed or fixed.")
]
FixedRateOption = Annotated[
    float | None, typer.Option("--fixed-rate", parser=number, metavar="R", help="Tokens per second of --rate fixed.")
]
CalibrationOption = Annotated[
    Switch | None, typer.Option("--calibration", help="Map scores to observed hit rates (auto).")
]
SkippingOption = Annotated[
    Switch | None, typer.Option("--skipping", help="Leave out drafting where it has not paid (auto).")
]
TemperatureOption = Annotated[
    float, typer.Option("--temperature", parser=number, metavar="T", help="0 is greedy; above 0 samples exactly.")
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", parser=integer, metavar="N", help="Seed of sampling; default: a fresh one.")
]
MaxTokensOption = Annotated[
    int, typer.Option("--max-tokens", parser=at_least_one, metavar="N", help="Longest answer in tokens.")
]
RawOption = Annotated[bool, typer.Option("--raw", help="Do not apply the chat template.")]
SystemOption = Annotated[str | None, typer.Option("--system", help="System message of the chat template.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
ShowEndsOption = Annotated[bool, typer.Option("--show-end-ids", help="Say which token ids end the answer, and why.")]


def generate(
    model: ModelArgument,
    prompt: PromptArgument,
    drafter: DrafterOption = None,
    policy: PolicyOption = None,
    budget: BudgetOption = None,
    block_size: BlockOption = None,
    candidates: CandidatesOption = None,
    max_nodes: MaxNodesOption = None,
    rate: RateOption = None,
    fixed_rate: FixedRateOption = None,
    calibration: CalibrationOption = None,
    skipping: SkippingOption = None,
    temperature: TemperatureOption = 0.0,
    seed: SeedOption = None,
    max_tokens: MaxTokensOption = 256,
    raw: RawOption = False,
    system: SystemOption = None,
    dtype: DtypeOption = Dtype.AUTO,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    profile: ProfileOption = None,
    allow_stale_profile: StaleOption = False,
    live_costs: LiveCostsOption = True,
    as_json: JsonOption = False,
    show_end_ids: ShowEndsOption = False,
) -> None:
    """Decode PROMPT with MODEL and stream the text."""
    load = LoadOptions(model, drafter, dtype.value, device, threads, profile, allow_stale_profile, live_costs)
    policy_options = {
        "budget": budget,
        "candidates": candidates,
        "max_nodes": max_nodes,
        "rate": rate,
        "fixed_rate": fixed_rate,
        "calibration": None if calibration is None else calibration is Switch.ON,
        "skipping": None if skipping is None else skipping is Switch.ON,
    }
    given = {name: value for name, value in policy_options.items() if value is not None}
    request: dict[str, Any] = {
        "policy": policy or (DEFAULT_POLICY if budget is None else BUDGET_POLICY),
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
        "raw": raw,
        "system": None if system is None else read_argument(system, "--system"),
        "block_size": block_size,
        **given,
    }
    text = read_prompt(prompt)
    check_request(text, request, given, load)
    with stdout_for_results() as results:
        with waiting_for(f"loading {model}"):
            engine = load_engine(load)
        if show_end_ids:
            _show_end_ids(engine, raw)
        if as_json:
            write_json(as_object(engine.generate([text], **request)[0]), results)
        else:
            _stream(engine, text, request, results)


def check_request(prompt: str, request: dict[str, Any], policy_options: dict[str, Any], load: LoadOptions) -> None:
    """Refuse what can be refused before a model is loaded. Raises UsageError."""
    from .core import Sampling
    from .policy import POLICIES, make_policy

    if not prompt:
        raise UsageError("prompt is empty: expected at least one character")
    name = request["policy"]
    make_policy(name, **policy_options)
    Sampling(request["temperature"], request["seed"] or 0)
    if request["block_size"] is not None and not POLICIES[name].drafts:
        raise UsageError(f"--block-size {request['block_size']} is not used by policy {name!r}, which never drafts")
    if request["raw"] and request["system"] is not None:
        raise UsageError("--system needs the chat template: leave out --raw")
    check_pair(load, name)


def as_object(generation: Generation) -> dict[str, Any]:
    """The `--json` object; sum of committed = number of token ids - 1."""
    return {
        "text": generation.text,
        "token_ids": list(generation.token_ids),
        "prompt_tokens": generation.prompt_tokens,
        "finish_reason": generation.finish_reason,
        "policy": generation.policy,
        "seed": generation.seed,
        "prefill_s": generation.prefill_s,
        "decode_s": generation.decode_s,
        "rounds": [{"rows": record.rows, "committed": record.committed} for record in generation.rounds],
    }


def _stream(engine: Engine, prompt: str, request: dict[str, Any], results: TextIO) -> None:
    """Write text as it is committed; the last line always ends, after an interrupt too."""
    last = ""
    try:
        # Closing aborts the request when the reader leaves or the user interrupts.
        with closing(engine.stream(prompt, **request)) as pieces:
            for piece in pieces:
                if piece.text:
                    # Noted first: an interrupt may come between the two.
                    last = piece.text
                    write(piece.text, results)
    except KeyboardInterrupt:
        if last and not last.endswith("\n"):
            write("\n", results)
        raise
    if not last.endswith("\n"):
        write("\n", results)


def _show_end_ids(engine: Engine, raw: bool) -> None:
    ends = engine.codec.ends(raw=raw) if engine.codec is not None else ()
    notice("end ids: " + ", ".join(f"{end.token_id} {end.token!r} ({end.source})" for end in ends))
