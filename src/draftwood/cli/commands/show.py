"""`draftwood show`: the draft tree of one round, or a page about a whole generation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import UsageError
from ..evidence import adopt_profile, check_parent, end_ids, load_profile, make_rule
from ..grids import is_unicode
from ..io import notice, read_argument, read_prompt, stdout_for_results, write
from ..load import LoadOptions, check_pair, load_engine
from ..options import (
    DeviceOption,
    DrafterOption,
    Dtype,
    DtypeOption,
    KvMemoryOption,
    LiveCostsOption,
    MaxTokensOption,
    ModelArgument,
    ProfileOption,
    RawOption,
    SeedOption,
    StaleOption,
    SystemOption,
    TemperatureOption,
    ThreadsOption,
    integer,
)
from ..policies import UNASKED, PolicyChoice
from ..progress import waiting_for

if TYPE_CHECKING:
    from ...draw.show import ShownGeneration

PICTURES = (".svg", ".png")

PromptArgument = Annotated[str, typer.Argument(metavar="PROMPT", help="The prompt as it is; - reads standard input.")]
RoundOption = Annotated[int, typer.Option("--round", parser=integer, metavar="N", help="Which round, counted from 0.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Picture of the round: .svg or .png.")
]
HtmlOption = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="A page about the whole generation, without a network.")
]


def show(
    model: ModelArgument,
    prompt: PromptArgument,
    drafter: DrafterOption = None,
    round_index: RoundOption = 0,
    output: OutputOption = None,
    html: HtmlOption = None,
    chosen: PolicyChoice = UNASKED,
    max_tokens: MaxTokensOption = 64,
    temperature: TemperatureOption = 0.0,
    seed: SeedOption = 0,
    profile: ProfileOption = None,
    allow_stale_profile: StaleOption = False,
    live_costs: LiveCostsOption = True,
    raw: RawOption = False,
    system: SystemOption = None,
    dtype: DtypeOption = Dtype.AUTO,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    kv_memory: KvMemoryOption = None,
) -> None:
    """Decode PROMPT with MODEL and show the draft tree of one round: in the terminal, as a picture or as a page."""
    from ...core import Sampling
    from ...engine import SamplingParams
    from ...policy import make_policy

    name, options = chosen.name, chosen.options
    load = LoadOptions(model, drafter, dtype.value, device, threads, kv_memory=kv_memory)
    text, said = read_prompt(prompt), None if system is None else read_argument(system, "--system")
    make_policy(name, **options)
    Sampling(temperature, seed)
    check_pair(load, name)
    _check_outputs(text, round_index, output, html)
    costs = load_profile(profile)
    with stdout_for_results() as results:
        with waiting_for(f"loading {model}"):
            engine = load_engine(load)
        adopt_profile(engine, costs, allow_stale=allow_stale_profile, live_costs=live_costs)
        rule = make_rule(engine, name, options)
        from ...draw.show import watch_generation

        if engine.codec is None:
            raise UsageError("this model has no tokenizer")
        prompt_ids = engine.codec.encode(text, raw=raw, system=said)
        asked = SamplingParams(max_tokens, temperature, seed, end_ids=end_ids(engine, raw))
        shown = watch_generation(engine, prompt_ids, rule, asked)
        facts = {
            "model": model,
            "policy": " ".join([name, *(f"{option}={value}" for option, value in options.items())]),
            "device": engine.device_name,
            "dtype": engine.dtype_name,
            "threads": str(engine.threads),
        }
        _write(shown, round_index, output, html, text, facts)
        if output is None and html is None:
            from ...draw.trees import draw_text

            view = shown.round(round_index)
            assert view.tree is not None
            place = f"round {view.index} of {len(shown.rounds)}, context {view.context}"
            kind = "drafted" if view.drafted else "did not draft"
            tree = draw_text(view.tree, ascii_only=not is_unicode(results))
            write(f"{place}, {kind}, {view.committed} committed\n{tree}", results)


def _check_outputs(prompt: str, round_index: int, output: Path | None, html: Path | None) -> None:
    if not prompt:
        raise UsageError("prompt is empty: expected at least one character")
    if round_index < 0:
        raise UsageError(f"--round {round_index}: expected 0 or more")
    if output is not None:
        if output.suffix not in PICTURES:
            raise UsageError(f"--output {output}: expected a name that ends in {' or '.join(PICTURES)}")
        check_parent(output, "--output")
    if html is not None:
        check_parent(html, "--html")


def speeds(shown: ShownGeneration) -> dict[str, str]:
    """Tokens per second of the rounds, and over plain decoding where the cost profile says what that takes."""
    timed = [item for item in shown.rounds if item.seconds]
    if not timed:
        return {}
    seconds, tokens = sum(item.seconds or 0.0 for item in timed), sum(item.committed for item in timed)
    found = {"tokens/s": f"{tokens / seconds:.1f}, every round timed by stage"}
    plain = [item.seconds or 0.0 for item in timed if item.rows == 1]
    if plain and len(plain) < len(timed):
        over = tokens / seconds * sum(plain) / len(plain)
        found["over plain rounds"] = f"{over:.2f}x, against the {len(plain)} rounds of one row"
    return found


def _write(
    shown: ShownGeneration, round_index: int, output: Path | None, html: Path | None, prompt: str, facts: dict[str, Any]
) -> None:
    """The files that were asked for."""
    from ...draw.report import html_report, save_report
    from ...draw.trees import save_picture

    if output is not None:
        tree = shown.round(round_index).tree
        assert tree is not None
        save_picture(tree, output, title=f"Draft tree of round {round_index}")
        notice(f"wrote {output}")
    if html is not None:
        mean = shown.generation.mean_committed
        facts = facts | {
            "rounds": str(len(shown.rounds)),
            "tokens": str(len(shown.generation.token_ids)),
            "mean committed": "-" if mean is None else f"{mean:.2f}",
            **speeds(shown),
        }
        page = html_report(
            shown.rounds, title="Draftwood", prompt=prompt, first_text=shown.first_text, facts=facts, opened=round_index
        )
        save_report(html, page)
        notice(f"wrote {html}")
