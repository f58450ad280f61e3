"""`draftwood record`: a trace of rounds, for replay without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...errors import UsageError
from ..evidence import (
    adopt_profile,
    check_parent,
    end_ids,
    load_profile,
    make_rule,
    prompt_sets,
    render_units,
)
from ..io import stdout_for_results, write
from ..load import LoadOptions, check_pair, load_engine
from ..options import (
    BlockOption,
    DeviceOption,
    DrafterOption,
    Dtype,
    DtypeOption,
    KvMemoryOption,
    LimitOption,
    LiveCostsOption,
    MaxTokensOption,
    ModelArgument,
    ProfileOption,
    PromptsOption,
    RawOption,
    SeedOption,
    StaleOption,
    SystemOption,
    TemperatureOption,
    ThreadsOption,
    at_least_one,
)
from ..policies import UNASKED, PolicyChoice
from ..progress import progress, waiting_for

OutputOption = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The trace, an .npz file.")]
EveryOption = Annotated[
    bool, typer.Option("--every-position", help="Draft at every position of the plain text: replays any policy.")
]
BatchOption = Annotated[
    int | None,
    typer.Option(
        "--batch", parser=at_least_one, metavar="N", help="Prompts decoded together with --every-position; default 8."
    ),
]


def record(
    model: ModelArgument,
    output: OutputOption,
    drafter: DrafterOption = None,
    prompts: PromptsOption = None,
    limit: LimitOption = None,
    every_position: EveryOption = False,
    chosen: PolicyChoice = UNASKED,
    max_tokens: MaxTokensOption = 256,
    temperature: TemperatureOption = 0.0,
    seed: SeedOption = 0,
    block_size: BlockOption = None,
    batch: BatchOption = None,
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
    """Decode prompts with MODEL and write what every round drafted, chose and cost to one trace."""
    from ...policy import POLICIES, make_policy

    if every_position and (chosen.asked is not None or chosen.options):
        raise UsageError("--every-position chooses nothing: leave out --policy and its options")
    if batch is not None and not every_position:
        raise UsageError(f"--batch {batch}: a policy's own rounds are recorded one request at a time")
    make_policy(chosen.name, **chosen.options)
    if not every_position and not POLICIES[chosen.name].drafts:
        raise UsageError(f"policy {chosen.name!r} never drafts: use --every-position, or a policy that drafts")
    load = LoadOptions(model, drafter, dtype.value, device, threads, kv_memory=kv_memory)
    check_pair(load, chosen.name)
    check_parent(output, "--output")
    sets, costs = prompt_sets(prompts, limit), load_profile(profile)
    from ...bench.provenance import versions
    from ...trace.record import EVERY_POSITION_BATCH, RecordOptions
    from ...trace.record import record as record_trace

    with stdout_for_results() as results:
        with waiting_for(f"loading {model}"):
            engine = load_engine(load)
        adopt_profile(engine, costs, allow_stale=allow_stale_profile, live_costs=live_costs)
        rule = None if every_position else make_rule(engine, chosen.name, chosen.options)
        units = render_units(engine, sets, raw=raw, system=system, history_tokens=max_tokens)
        size = batch or (EVERY_POSITION_BATCH if every_position else 1)
        how = RecordOptions(max_tokens, temperature, seed, block_size, size, end_ids(engine, raw))
        with progress("recording", len(units)) as bar:
            trace = record_trace(
                engine, units, rule, how, model=model, drafter=drafter or "", versions=versions(), advance=bar.advance
            )
        trace.save(output)
        write(f"{output}: {trace.num_requests} requests, {trace.num_rounds} rounds\n", results)
