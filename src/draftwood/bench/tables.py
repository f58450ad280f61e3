"""Results as a table for the terminal and as Markdown, from the same cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .bandwidth import Floor
from .plan import CHAIN, PLAIN
from .session import BenchRun
from .summary import OVERALL, Line

WIDTH = 144
"""Columns of a table that goes to a file."""
ABSENT = "-"
_DRIFT, _FOREIGN_CORES = 1.15, 0.3
NEAR_TIE = (
    "near-tie: equal but for rounding; the first difference lies where the model's own two best logits are closer than "
    "the rounding of its number type, so either token is its answer"
)


def headings(timer: str) -> tuple[str, ...]:
    """Column headings; speeds are of the decode timer, times and ratios of `timer`."""
    return (
        "policy", "tokens/s", f"ms/token ({timer})", "over ar (95 %)", "gain over chain (95 %)", "committed",
        "rows (sd)", "skipped", "first ms", "peak MB", "output",
    )  # fmt: skip


def cells(line: Line) -> tuple[str, ...]:
    """One line of the table."""
    near = f" ({line.near_ties} of {line.samples})" if line.near_ties else ""
    return (
        line.row.label,
        number(line.tokens_per_s),
        number(line.ms_per_token),
        number(line.speedup_over_ar, "x") + _interval(line, "speedup_over_ar", PLAIN, "{:.2f}"),
        percent(line.gain_over_chain) + _interval(line, "gain_over_chain", CHAIN, "{:+.0%}"),
        number(line.mean_committed),
        ABSENT if line.mean_rows is None else f"{line.mean_rows:.1f} ({line.sd_rows:.1f})",
        f"{line.skipped_rounds}/{line.rounds}" if line.rounds else ABSENT,
        f"{line.ttft_s * 1e3:.0f}",
        ABSENT if line.peak_bytes is None else f"{line.peak_bytes / 1e6:.0f}",
        line.output + near,
    )


def notes(lines: Sequence[Line], floor: Floor | None) -> list[str]:
    """What stands under a table: the floor of plain decoding, the oracle budget, sign tests, verification."""
    found = []
    plain = next((line for line in lines if line.row.policy == PLAIN), None)
    if floor is not None and plain is not None and plain.ms_per_token is not None:
        times = plain.ms_per_token / floor.ms_per_token
        found.append(
            f"floor of ar: {floor.ms_per_token:.2f} ms/token ({floor.weight_bytes / 1e6:.0f} MB of weights at "
            f"{floor.bytes_per_s / 1e9:.1f} GB/s measured); ar takes {times:.2f} x that"
        )
    oracle = next((line.oracle_budget for line in lines if line.oracle_budget is not None), None)
    if oracle is not None:
        own = [line for line in lines if line.row.budget is None and line.over_oracle is not None]
        parts = [f"{line.row.label} {line.over_oracle:.3f}" for line in own if line.row.policy != PLAIN]
        found.append(f"oracle budget of this sweep: {oracle}; speed over it: {', '.join(parts) or ABSENT}")
    found += doubts(lines)
    tests = [
        f"{line.row.label} {line.sign_over_ar.wins}:{line.sign_over_ar.losses} (p {line.sign_over_ar.p_value:.2g})"
        for line in lines
        if line.sign_over_ar is not None
    ]
    if tests:
        found.append("prompts won:lost against ar (sign test): " + ", ".join(tests))
    verify = [f"{line.row.label} {1e3 * line.stage_s['verify']:.2f}" for line in lines if "verify" in line.stage_s]
    if verify:
        found.append("ms of a verification, stages timed apart: " + ", ".join(verify))
    return found


def run_doubts(run: BenchRun) -> list[str]:
    """What weakens a whole run: rows that were left out, and other work on the machine."""
    found = [
        f"row {row} was left out: {reason}" for failed in run.failed.values() for row, reason in sorted(failed.items())
    ]
    if run.load is not None and run.load > _FOREIGN_CORES:
        found.append(f"other work kept {run.load:.1f} cores busy meanwhile: times are longer and noisier than at rest")
    return found


def doubts(lines: Sequence[Line]) -> list[str]:
    """What makes the numbers of a table say less than they seem to."""
    found, first = [], lines[0]
    if first.loops:
        speeds = [
            f"{line.row.label} {number(line.over_ar_without_loops, 'x')}" for line in lines if line.row.policy != PLAIN
        ]
        found.append(
            f"{first.loops} of {first.prompts} answers are loops (more than half of their 4-grams occurred before); "
            f"over ar without them: {', '.join(speeds) or ABSENT}"
        )
    if first.drift is not None and not 1 / _DRIFT < first.drift < _DRIFT:
        found.append(
            f"the machine drifted: a token of ar took {first.drift:.2f} x as long in the later half; rows took "
            "turns, so "
            "ratios suffer less than speeds"
        )
    if first.prompts == 1:
        found.append("one prompt: no interval can be given")
    if any(line.near_ties for line in lines):
        found.append(NEAR_TIE)
    return found


def text_tables(run: BenchRun, encoding: str, width: int = WIDTH) -> str:
    """All tables as text that `encoding` can carry, as wide as the terminal."""
    parts = []
    for title, lines in groups(run):
        parts.append(text_grid(title, headings(lines[0].timer), [cells(line) for line in lines], encoding, width))
        parts += [f"{note}\n" for note in notes(lines, run.floor)]
    return "".join([*parts, *(f"{doubt}\n" for doubt in run_doubts(run))])


def text_grid(
    title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], encoding: str, width: int = WIDTH
) -> str:
    """One table for a terminal: the first column to the left, the others to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    style = box.SIMPLE_HEAD if encoding.lower().startswith("utf") else box.ASCII
    grid = Table(box=style, padding=(0, 1, 0, 0))
    for at, heading in enumerate(heads):
        grid.add_column(heading, justify="left" if at == 0 else "right", no_wrap=at == 0)
    for row in rows:
        grid.add_row(*row)
    console = Console(width=max(width, 60), color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(grid)
    return "\n".join([title, *(line.rstrip() for line in captured.get().splitlines())]) + "\n"


def markdown(run: BenchRun, facts: Mapping[str, Any]) -> str:
    """The same tables as Markdown, under the facts of the run."""
    parts = ["# Bench", "", *(f"- {name}: {value}" for name, value in facts.items())]
    parts += [*(f"- {doubt}" for doubt in run_doubts(run)), ""]
    for title, lines in groups(run):
        parts += [f"## {title}", "", markdown_table(headings(lines[0].timer), [cells(line) for line in lines]), ""]
        parts += [f"- {note}" for note in notes(lines, run.floor)]
        parts.append("")
    return "\n".join(parts)


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    lines = [list(heads), ["---", *["---:"] * (len(heads) - 1)], *(list(row) for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def groups(run: BenchRun) -> list[tuple[str, list[Line]]]:
    """(title, lines) of every table: set by set, then overall, panel by panel."""
    found = []
    for panel in run.panels:
        lines = run.lines.get(panel.name, [])
        names = list(dict.fromkeys(line.set_name for line in lines))
        # One set overall is that set again.
        shown = [name for name in names if name != OVERALL or len(names) > 2]
        for name in shown:
            own = [line for line in lines if line.set_name == name]
            title = f"{name}: {own[0].prompts} prompts"
            found.append((f"{panel.name}, {title}" if panel.name else title, own))
    return found


def number(value: float | None, unit: str = "") -> str:
    """Two decimals, or a dash."""
    return ABSENT if value is None else f"{value:.2f}{unit}"


def percent(value: float | None) -> str:
    """Signed percent, or a dash."""
    return ABSENT if value is None else f"{value:+.1%}"


def _interval(line: Line, name: str, base: str, form: str) -> str:
    """The interval behind a value; a row against itself has none."""
    pair = line.intervals.get(name)
    if pair is None or line.row.label == base:
        return ""
    return f" {form.format(pair[0])}..{form.format(pair[1])}"
