"""`draftwood profile`: measure what a round costs here, and fit it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import CostError, UsageError
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
    integer,
    number,
)
from ..progress import progress, waiting_for

if TYPE_CHECKING:
    from ...cost import CostProfile

PARTIAL = ".partial"

OutputOption = Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="Where the profile is written.")]
QuickOption = Annotated[bool, typer.Option("--quick", help="Two contexts, three repeats: a minute or two.")]
ContextsOption = Annotated[
    str | None, typer.Option("--contexts", metavar="L,L", help="Context lengths; default: 128,512,1024,2048.")
]
NodesOption = Annotated[
    int | None,
    typer.Option("--max-nodes", parser=integer, metavar="N", help="Largest tree; default: 64 on a CPU, 512 elsewhere."),
]
SecondsOption = Annotated[
    float | None, typer.Option("--max-seconds", parser=number, metavar="S", help="Stop after so many seconds.")
]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on from FILE.partial.")]
PlotOption = Annotated[str | None, typer.Option("--plot", metavar="PNG", help="Draw the costs too.")]


def profile(
    model: ModelArgument,
    output: OutputOption,
    drafter: DrafterOption = None,
    quick: QuickOption = False,
    contexts: ContextsOption = None,
    max_nodes: NodesOption = None,
    max_seconds: SecondsOption = None,
    resume: ResumeOption = False,
    plot: PlotOption = None,
    dtype: DtypeOption = Dtype.AUTO,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    kv_memory: KvMemoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure what a round of MODEL and its drafter costs on this machine, and write it to FILE."""
    path = writable(output, ".json")
    picture = None if plot is None else writable(plot, ".png")
    from ...engine.measuring.profile import MeasureOptions, measure_profile

    partial = path.with_name(path.name + PARTIAL)
    options = MeasureOptions(
        quick=quick,
        contexts=None if contexts is None else integers(contexts, "--contexts"),
        max_nodes=max_nodes,
        max_seconds=max_seconds,
        partial=partial,
        resume=resume,
    )
    load = LoadOptions(model, drafter, dtype.value, device, threads, kv_memory=kv_memory)
    check_pair(load, "auto")
    if picture is not None:
        from ...draw.costs import require_matplotlib

        require_matplotlib()
    if partial.exists() and not resume:
        notice(f"{partial} holds unfinished work of another run: it is written over (--resume goes on from it)")
    with stdout_for_results() as results:
        with waiting_for(f"loading {model}"):
            engine = load_engine(load)
        with _said_when_interrupted(partial), progress("measuring") as bar:
            measured = measure_profile(engine, options, report=bar.report)
        measured.save(path)
        partial.unlink(missing_ok=True)
        if picture is not None:
            from ...draw.costs import plot_costs

            plot_costs(measured, picture, width=cast_width(measured))
        if as_json:
            write_json(summary(measured, path), results)
        else:
            write(described(measured, path), results)


def writable(name: str, ending: str) -> Path:
    """The path of a file that can be made; raises UsageError for another ending or a folder that is not there."""
    path = Path(name)
    if path.suffix.lower() != ending:
        raise UsageError(f"output {name!r}: expected a name that ends in {ending}")
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"output {name!r}: expected a file in a folder that exists")
    return path


def integers(text: str, option: str) -> tuple[int, ...]:
    """Whole numbers between commas; raises UsageError naming the option."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"{option} {text!r}: expected whole numbers between commas") from error


def cast_width(measured: CostProfile) -> int | None:
    """The width that `cast` would deploy; None when the profile does not carry it that far."""
    from ...policy.cast import Cast

    try:
        return Cast(max_nodes=int(measured.rows[-1]) - 1).with_profile(measured).width
    except CostError:
        return None


def summary(measured: CostProfile, path: Path) -> dict[str, Any]:
    """The `--json` object."""
    return {
        "path": str(path),
        "rows": measured.rows.tolist(),
        "contexts": measured.contexts.tolist(),
        "requests": measured.requests.tolist(),
        "steps": list(measured.steps),
        "draft_s": measured.draft_s[:, 0].tolist(),
        "verify_s": measured.verify_s.tolist(),
        "cast_width": cast_width(measured),
        **measured.notes.get("measured", {}),
    }


def described(measured: CostProfile, path: Path) -> str:
    """A few lines for a reader: seconds of some rows at each context, and what was found."""
    shown = [0, *range(1, len(measured.rows) - 1, max(1, (len(measured.rows) - 1) // 5)), len(measured.rows) - 1]
    lines = ["verify, ms".ljust(14) + "".join(f"{measured.rows[at]:>8} rows" for at in shown) + "     draft"]
    for context, seconds, draft_s in zip(measured.contexts, measured.verify_s, measured.draft_s, strict=True):
        cells = "".join(f"{seconds[at] * 1e3:>13.1f}" for at in shown)
        lines.append(f"context {context}".ljust(14) + cells + f"{draft_s[0] * 1e3:>10.1f}")
    facts = measured.notes.get("measured", {})
    lines.append(f"steps after rows: {', '.join(map(str, measured.steps)) or 'none'}")
    width = cast_width(measured)
    lines.append(
        f"cast would deploy {width} nodes" if width is not None else "cast: not enough rows or gains to choose"
    )
    lines += [f"disturbed: {what}; measure again on a quiet machine" for what in facts.get("disturbed", ())]
    lines.append(f"{path}: measured in {facts.get('seconds', 0.0):.0f} s")
    return "\n".join(lines) + "\n"


@contextmanager
def _said_when_interrupted(partial: Path) -> Iterator[None]:
    """Tell where the unfinished work is."""
    try:
        yield
    except KeyboardInterrupt:
        if partial.is_file():
            notice(f"interrupted: what was measured is in {partial}; go on with --resume")
        raise
