"""`draftwood generate`: decode one prompt and stream its text, or many together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from ...errors import DraftwoodError, RequestError, UsageError
from ..batch import BatchOption, BatchOptions, MinNodesOption, ShareOption
from ..evidence import end_ids, prompt_sets
from ..io import notice, read_argument, read_prompt, stdout_for_results, write, write_json
from ..load import LoadOptions, check_pair, load_engine
from ..options import (
    BlockOption,
    DeviceOption,
    DrafterOption,
    Dtype,
    DtypeOption,
    GenerationOption,
    JsonOption,
    KvMemoryOption,
    LimitOption,
    LiveCostsOption,
    MaxTokensOption,
    ModelArgument,
    ParseSpecialOption,
    ProfileOption,
    PromptsOption,
    RawOption,
    StaleOption,
    SystemOption,
    TemplateKwargsOption,
    TemplateOption,
    ThreadsOption,
    chat_settings,
    integer,
    number,
)
from ..policies import UNASKED, PolicyChoice
from ..progress import waiting_for

if TYPE_CHECKING:
    from ... import Engine, RequestOutput
    from ...prompts.rows import Prompt
    from ...prompts.sets import PromptSet

LonePromptArgument = Annotated[
    str | None, typer.Argument(metavar="[PROMPT]", help="The prompt as it is; - reads standard input.")
]
LoneTemperatureOption = Annotated[
    float | None,
    typer.Option(
        "--temperature", parser=number, metavar="T", help="0, the default, is greedy; above 0 samples exactly."
    ),
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", parser=integer, metavar="N", help="Seed of sampling; default: a fresh one.")
]
ShowEndsOption = Annotated[bool, typer.Option("--show-end-ids", help="Say which token ids end the answer, and why.")]


def generate(
    model: ModelArgument,
    prompt: LonePromptArgument = None,
    prompts: PromptsOption = None,
    limit: LimitOption = None,
    batch: BatchOption = None,
    share: ShareOption = None,
    min_nodes: MinNodesOption = None,
    drafter: DrafterOption = None,
    chosen: PolicyChoice = UNASKED,
    block_size: BlockOption = None,
    temperature: LoneTemperatureOption = None,
    seed: SeedOption = None,
    max_tokens: MaxTokensOption = 256,
    raw: RawOption = False,
    system: SystemOption = None,
    template: TemplateOption = None,
    template_kwargs: TemplateKwargsOption = None,
    parse_special: ParseSpecialOption = False,
    generation_config: GenerationOption = None,
    dtype: DtypeOption = Dtype.AUTO,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    kv_memory: KvMemoryOption = None,
    profile: ProfileOption = None,
    allow_stale_profile: StaleOption = False,
    live_costs: LiveCostsOption = True,
    as_json: JsonOption = False,
    show_end_ids: ShowEndsOption = False,
) -> None:
    """Decode PROMPT with MODEL and stream the text; or many --prompts together, a JSON line each as they end."""
    load = LoadOptions(
        model, drafter, dtype.value, device, threads, profile, allow_stale_profile, live_costs, kv_memory=kv_memory,
        generation_config=generation_config, chat=chat_settings(template, template_kwargs, parse_special),
    )  # fmt: skip
    together = BatchOptions(batch, share, min_nodes)
    request: dict[str, Any] = {
        "policy": chosen.name,
        "max_tokens": max_tokens,
        **({} if temperature is None else {"temperature": temperature}),
        "seed": seed,
        "raw": raw,
        "system": None if system is None else read_argument(system, "--system"),
        "block_size": block_size,
        **chosen.options,
    }
    sets = _prompt_sets(prompt, prompts, limit, together)
    text = "" if prompt is None else read_prompt(prompt)
    if not text and not sets:
        raise UsageError("prompt is empty: expected at least one character")
    check_swapped(model, text)
    check_request(request, chosen.options, load)
    load = replace(load, config=together.config(request["policy"]))
    with stdout_for_results() as results:
        with waiting_for(f"loading {model}"):
            engine = load_engine(load)
        if show_end_ids:
            ends = engine.codec.ends(raw=raw) if engine.codec is not None else ()
            notice("end ids: " + ", ".join(f"{end.token_id} {end.token!r} ({end.source})" for end in ends))
        if sets:
            _decode_sets(engine, sets, request, results)
        elif as_json:
            write_json({**as_object(engine.generate([text], **request)[0]), "threads": engine.threads}, results)
        else:
            _stream(engine, text, request, results)


def check_swapped(model: str, prompt: str) -> None:
    """Raise UsageError where PROMPT names a model on this machine and MODEL does not."""
    from ...models.source import DEMO_NAME, resolve_model

    path = Path(prompt).expanduser() if len(prompt) < 1000 and "\n" not in prompt else Path("/")
    named = prompt == DEMO_NAME or (path / "config.json").is_file() or (path.suffix == ".gguf" and path.is_file())
    if named and resolve_model(model).kind == "hub":
        raise UsageError(f"model {model!r} is no model here, but PROMPT {prompt!r} is one: expected MODEL PROMPT")


def check_request(request: dict[str, Any], policy_options: dict[str, Any], load: LoadOptions) -> None:
    """Refuse what can be refused before a model is loaded. Raises UsageError."""
    from ...core import Sampling
    from ...policy import POLICIES, make_policy

    name = request["policy"]
    make_policy(name, **policy_options)
    Sampling(request.get("temperature", 0.0), request["seed"] or 0)
    if request["block_size"] is not None and not POLICIES[name].drafts:
        raise UsageError(f"--block-size {request['block_size']} is not used by policy {name!r}, which never drafts")
    if request["raw"] and request["system"] is not None:
        raise UsageError("--system needs the chat template: leave out --raw")
    check_pair(load, name)


def as_object(generation: RequestOutput) -> dict[str, Any]:
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


def _prompt_sets(
    prompt: str | None, prompts: list[str] | None, limit: int | None, together: BatchOptions
) -> list[PromptSet]:
    """The sets to decode together; none for a lone prompt."""
    if prompt is not None and prompts is not None:
        raise UsageError(f"PROMPT and --prompts {','.join(prompts)}: give one of the two")
    if prompts is not None:
        return prompt_sets(prompts, limit)
    if prompt is None:
        raise UsageError("no prompt: give PROMPT (- reads standard input) or --prompts")
    if limit is not None:
        raise UsageError(f"--limit {limit}: needs several prompts, give --prompts")
    together.check_alone()
    return []


def _decode_sets(engine: Engine, sets: Sequence[PromptSet], request: dict[str, Any], results: TextIO) -> None:
    """Decode all prompts and write a line for each: `index` counts the prompts asked for, lines come as they end.

    A prompt that cannot be decoded is named before anything runs; an interrupt keeps what was written.
    """
    rows = [(prompts.name, prompt) for prompts in sets for prompt in prompts.prompts]
    talks = sum(len(prompt.turns) > 1 for _, prompt in rows)
    if talks:
        notice(f"{talks} of {len(rows)} prompts are conversations: only their `prompt` is decoded")
    from ...prompts.units import Rendering, encode_prompt

    if engine.codec is None:
        raise UsageError("this model has no tokenizer")
    rendering = Rendering(request.pop("raw"), request.pop("system"))
    # The same for all but what a row asks for itself.
    common = {
        name: request.pop(name) for name in ("max_tokens", "temperature", "seed", "block_size") if name in request
    }
    params = replace(engine.defaults, end_ids=end_ids(engine, rendering.raw), **common)
    encoded, asked = [], []
    for name, prompt in rows:
        try:
            encoded.append(engine.encode(encode_prompt(engine.codec, prompt, rendering)))
        except (RequestError, UsageError) as error:
            raise type(error)(f"prompt set {name}, id {prompt.id}: {error}") from error
        asked.append(replace(params, **prompt.settings))
    with closing(engine.generate_unordered(encoded, asked, **request)) as ended, _naming(rows):
        for index, generation in ended:
            name, prompt = rows[index]
            write_json(
                {"index": index, "set": name, "id": prompt.id, **as_object(generation), "threads": engine.threads},
                results,
            )


@contextmanager
def _naming(rows: Sequence[tuple[str, Prompt]]) -> Iterator[None]:
    """Errors of one of several prompts name its set and id."""
    try:
        yield
    except DraftwoodError as error:
        if error.prompt is None:
            raise
        name, prompt = rows[error.prompt]
        raise type(error)(f"prompt set {name}, id {prompt.id}: {error}") from error


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
