"""`draftwood demo`: the bundled pair under several policies, in one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ...models.machine import processor_name
from ..grids import grid_lines, is_unicode
from ..io import plural, stdout_for_results, write, write_json
from ..load import LoadOptions, check_pair, load_engine
from ..options import (
    DeviceOption,
    Dtype,
    DtypeOption,
    JsonOption,
    KvMemoryOption,
    LiveCostsOption,
    MaxTokensOption,
    ProfileOption,
    StaleOption,
    ThreadsOption,
)
from ..progress import progress, waiting_for

if TYPE_CHECKING:
    from ... import Engine
    from ...bench.demo import DemoLine

DEMO_MODEL = "demo:smollm2"
TableStyle = Literal["unicode", "ascii", "markdown"]

MarkdownOption = Annotated[bool, typer.Option("--markdown", help="Print the table in Markdown.")]


def demo(
    max_tokens: MaxTokensOption = 40,
    dtype: DtypeOption = Dtype.AUTO,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    kv_memory: KvMemoryOption = None,
    profile: ProfileOption = None,
    allow_stale_profile: StaleOption = False,
    live_costs: LiveCostsOption = True,
    markdown: MarkdownOption = False,
    as_json: JsonOption = False,
) -> None:
    """Decode a few prompts with the bundled pair under every policy and compare; exit 1 if outputs differ."""
    load = LoadOptions(
        DEMO_MODEL, None, dtype.value, device, threads, profile, allow_stale_profile, live_costs, kv_memory=kv_memory
    )
    check_pair(load, "auto")
    from ...bench.demo import DEMO_ROWS, demo_prompts, run_demo

    prompts = demo_prompts()
    with stdout_for_results() as results:
        with waiting_for(f"loading {DEMO_MODEL} (the first time: converting it, half a minute)"):
            engine = load_engine(load)
        with progress("decoding", len(prompts) * len(DEMO_ROWS)) as bar:
            lines = run_demo(engine, DEMO_ROWS, prompts, max_tokens, bar.advance)
        facts = machine_facts(engine)
        if as_json:
            write_json({"machine": facts, "max_tokens": max_tokens, "rows": [asdict(line) for line in lines]}, results)
        else:
            style: TableStyle = "markdown" if markdown else "unicode" if is_unicode(results) else "ascii"
            write(table(lines, facts, max_tokens, style), results)
    if any(line.same_output == "different" for line in lines):
        raise typer.Exit(1)


def machine_facts(engine: Engine) -> dict[str, Any]:
    """What a reader needs to place the numbers."""
    import torch

    return {
        "processor": processor_name(),
        "device": engine.device_name,
        "dtype": engine.dtype_name,
        "threads": engine.threads,
        "torch": torch.__version__,
    }


def table(lines: Sequence[DemoLine], facts: dict[str, Any], max_tokens: int, style: TableStyle) -> str:
    """The table and the line of machine facts; the styles ascii and markdown are pure ASCII."""
    from rich import box
    from rich.table import Table

    from ...bench.tables import NEAR_TIE

    boxes = {"unicode": box.SIMPLE_HEAD, "ascii": box.ASCII, "markdown": box.MARKDOWN}
    grid = Table(box=boxes[style])
    grid.add_column("policy")
    for heading in ("tokens/s", "over plain", "over chain", "committed", "rows"):
        grid.add_column(heading, justify="right")
    grid.add_column("output")
    for line in lines:
        speedups = [_number(ratio, "x") for ratio in (line.over_plain, line.over_chain)]
        means = [_number(mean) for mean in (line.mean_committed, line.mean_rows)]
        near = f" ({line.near_ties} of {line.prompts})" if line.near_ties else ""
        grid.add_row(line.label, _number(line.tokens_per_s), *speedups, *means, line.same_output + near)
    where = (
        f"{facts['processor']}, {facts['device']}, {facts['dtype']}, {plural(facts['threads'], 'thread')}, "
        f"torch {facts['torch']}; {lines[0].prompts} prompts x {max_tokens} tokens, greedy"
    )
    note = "committed and rows: means per round. All policies run in one eager engine on a small target."
    body = "\n".join(grid_lines([grid], 100))  # a verdict with its count is never wrapped
    if any(line.near_ties for line in lines):
        note += f"\n{NEAR_TIE}."
    return f"{body}\n\n{where}\n{note}\n"


def _number(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:.2f}{unit}"
