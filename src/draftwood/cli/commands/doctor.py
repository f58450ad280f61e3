"""`draftwood doctor`: what is wrong with a pair."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from ...errors import ModelError, UnsupportedError
from ..evidence import check_parent
from ..grids import box_for, grid_lines
from ..io import notice, stdout_for_results, write, write_json
from ..load import LoadOptions, check_pair, load_engine
from ..options import (
    DeviceOption,
    DrafterOption,
    Dtype,
    DtypeOption,
    JsonOption,
    KvMemoryOption,
    ModelArgument,
    ThreadsOption,
    at_least_one,
)
from ..progress import waiting_for
from .demo import machine_facts

if TYPE_CHECKING:
    from ... import Engine
    from ...doctor.baseline import Baseline
    from ...doctor.examine import Diagnosis

SCHEMA = 1

PositionsOption = Annotated[
    int, typer.Option("--positions", parser=at_least_one, metavar="N", help="Positions to measure at.")
]
BaselineOption = Annotated[
    Path | None,
    typer.Option("--baseline", metavar="FILE", help="Stored baseline; default: baseline.json of the checkpoint."),
]
NoBaselineOption = Annotated[
    bool, typer.Option("--no-baseline", help="Compare with chance, on the target's own answers.")
]
SaveOption = Annotated[
    Path | None,
    typer.Option("--save-baseline", metavar="FILE", help="Take the pair for well and store what it scores."),
]


def doctor(
    model: ModelArgument,
    drafter: DrafterOption = None,
    positions: PositionsOption = 1000,
    baseline: BaselineOption = None,
    no_baseline: NoBaselineOption = False,
    save_baseline: SaveOption = None,
    dtype: DtypeOption = Dtype.AUTO,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    kv_memory: KvMemoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure how well a pair drafts and name what is wrong with it; exit 1 with a fault."""
    load = LoadOptions(model, drafter, dtype.value, device, threads, kv_memory=kv_memory)
    check_pair(load, "chain")
    # Found first: a name that leads nowhere is wrong use, no fault of a pair.
    from ...models.source import fetch_folder, resolve_model

    source = resolve_model(model)
    if drafter is not None:
        fetch_folder(resolve_model(drafter), "drafter")
    if source.kind == "hub":
        fetch_folder(source)
    if save_baseline is not None:
        check_parent(save_baseline, "--save-baseline")
    with stdout_for_results() as results:
        engine = _load(load, model, results, as_json)
        if save_baseline is not None:
            from ...doctor.baseline import write_baseline
            from ...doctor.consult import measure_baseline

            with waiting_for("measuring"):
                measured = measure_baseline(engine)
            write_baseline(measured, save_baseline)
            rates = " ".join(f"{rate:.3f}" for rate in measured.hit_rate())
            positions = sum(map(len, measured.logp))
            write(f"{save_baseline}: {positions} positions, hit rate by depth {rates}\n", results)
            return
        stored = None if no_baseline else _stored(engine, baseline)
        from ...doctor.consult import Prescription, consult

        with waiting_for("measuring") as wait:
            found = consult(engine, stored, Prescription(positions), lambda what: wait.tell(f"measuring: {what}"))
        facts = {"schema": SCHEMA, "model": model, "machine": machine_facts(engine)}
        if as_json:
            write_json({**facts, **as_object(found)}, results)
        else:
            write(report(found, facts, results), results)
    if found.fault is not None:
        raise typer.Exit(1)


def as_object(found: Diagnosis) -> dict[str, Any]:
    """The diagnosis as JSON fields; gains in nats a token."""
    document = asdict(found)
    for finding, one in zip(document["tried"], found.tried, strict=True):
        finding["gain"]["errors"] = one.gain.errors
        finding["counts"] = one.gain.counts
    return document


def report(found: Diagnosis, facts: dict[str, Any], stream: TextIO) -> str:
    """Hits by depth, what was tried, notes, and the diagnosis last."""
    from rich.table import Table

    style = box_for(stream)
    rates = Table("depth", *(str(depth + 1) for depth in range(len(found.hit_rate))), box=style)
    rates.add_row("hit rate", *(f"{rate:.3f}" for rate in found.hit_rate))
    if found.expected is not None:
        rates.add_row("baseline", *(f"{rate:.3f}" for rate in found.expected))
    tried = Table("suspect", "repair", "gain", "errors", "hits", "positions", box=style)
    for one in found.tried:
        hits = "-" if one.hit_gain != one.hit_gain else f"{one.hit_gain:+.3f}"
        gains = (f"{one.gain.mean:+.3f}", f"{one.gain.errors:.1f}")
        tried.add_row(one.suspect, one.repair, *gains, hits, str(one.positions))
    lines = grid_lines([rates, tried] if found.tried else [rates], 120)
    machine = facts["machine"]
    legend = (
        ["gain: nats a token of the best repair of each suspect, errors: in standard errors"] if found.tried else []
    )
    lines += [
        "",
        f"{facts['model']}, {machine['dtype']}, {machine['device']}; {found.positions} positions, "
        f"chance {found.chance:.3f}",
        *legend,
        *(f"note: {note}" for note in found.notes),
        f"diagnosis: {found.fault or 'well'}: {found.detail}",
    ]
    return "\n".join(lines) + "\n"


def _load(load: LoadOptions, model: str, results: TextIO, as_json: bool) -> Engine:
    """The pair; one that cannot be loaded is a fault by itself."""
    try:
        with waiting_for(f"loading {model}"):
            return load_engine(load)
    except (ModelError, UnsupportedError) as error:
        if as_json:
            write_json({"schema": SCHEMA, "model": model, "fault": "load", "detail": str(error)}, results)
        else:
            write(f"diagnosis: load: {error}\n", results)
        raise typer.Exit(1) from error


def _stored(engine: Engine, path: Path | None) -> Baseline | None:
    """The baseline that was named, or the checkpoint's own if it has one."""
    from ...doctor.baseline import baseline_path, read_baseline
    from ...draft.dflash import DFlashDrafter

    drafter = engine.state.drafter
    if path is None and isinstance(drafter, DFlashDrafter):
        path = baseline_path(drafter)
        if not path.is_file():
            notice(f"{path}: no stored baseline, comparing with chance (--save-baseline makes one of a good pair)")
            return None
    return None if path is None else read_baseline(path, engine.state.target.spec.vocab_size)
