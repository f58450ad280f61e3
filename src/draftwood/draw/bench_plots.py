"""Plots of a bench, by matplotlib (extra `plot`): readable in black and white, axes with units."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..bench.plan import CHAIN, PLAIN
from ..bench.runner import Sample
from ..bench.session import BenchRun
from ..bench.summary import OVERALL, Line
from ..errors import UsageError
from ..files import write_file

MARKERS = "osD^vPX*<>"
LINES = ("-", "--", "-.", ":")
FORMATS = ("png", "svg")


def plots_available() -> bool:
    """True when matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def save_plots(run: BenchRun, samples: Sequence[Sample], folder: Path) -> list[Path]:
    """Write every plot that the results allow as PNG and SVG; returns the files."""
    written = []
    for panel in run.panels:
        lines = run.lines.get(panel.name, [])
        own = [sample for sample in samples if sample.panel == panel.name]
        stem = f"-{panel.name}".replace(" ", "-").replace("=", "") if panel.name else ""
        made = {
            "speed-by-budget": speed_by_budget(lines),
            "committed": committed_histogram(own),
            "width": width_over_rounds(own),
            "stages": stage_bars(lines),
        }
        for name, figure in made.items():
            if figure is None:
                continue
            for kind in FORMATS:
                data = io.BytesIO()
                figure.savefig(data, format=kind, dpi=144)
                written.append(folder / f"{name}{stem}.{kind}")
                write_file(written[-1], data.getvalue(), UsageError)
    return written


def speed_by_budget(lines: Sequence[Line]) -> Any | None:
    """Speed over `ar` of every fixed budget, a curve a set, with what `auto` chose marked; None without a sweep."""
    swept = [line for line in lines if line.row.budget is not None and line.speedup_over_ar is not None]
    if len({line.row.budget for line in swept}) < 2:
        return None
    figure, axes = _figure()
    sets = list(dict.fromkeys(line.set_name for line in swept))
    sets = [name for name in sets if name != OVERALL] if len(sets) == 2 else sets
    for number, name in enumerate(sets):
        own = sorted((line for line in swept if line.set_name == name), key=lambda line: line.row.budget or 0)
        style = {"marker": MARKERS[number % len(MARKERS)], "linestyle": LINES[number % len(LINES)]}
        color = f"C{number}"
        axes.plot(
            [line.row.budget for line in own], [line.speedup_over_ar for line in own], label=name, color=color, **style
        )
        for policy, face in (("auto", color), ("caddtree", "white")):
            for line in lines:
                known = line.mean_rows is not None and line.speedup_over_ar is not None
                if line.set_name == name and line.row.policy == policy and known:
                    axes.errorbar(
                        [(line.mean_rows or 1) - 1], [line.speedup_over_ar], xerr=[line.sd_rows or 0.0], marker="*",
                        markersize=13, color=color, markerfacecolor=face, markeredgecolor="black", capsize=3,
                        label=f"{policy}, {name} (mean and sd of its nodes)",
                    )  # fmt: skip
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set(xlabel="nodes verified beside the root", ylabel="speed over plain decoding (x)", xscale="symlog")
    axes.legend(fontsize=7)
    return figure


def committed_histogram(samples: Sequence[Sample]) -> Any | None:
    """Committed lengths of the rounds of every drafting row, as shares; None without rounds."""
    rows = [row for row in dict.fromkeys(sample.row for sample in samples) if row != PLAIN]
    lengths = {row: [n for sample in samples if sample.row == row for n in sample.committed] for row in rows}
    lengths = {row: counts for row, counts in lengths.items() if counts}
    if not lengths:
        return None
    figure, axes = _figure()
    for number, (row, counts) in enumerate(lengths.items()):
        longest = max(counts)
        shares = [counts.count(n) / len(counts) for n in range(1, longest + 1)]
        axes.plot(
            range(1, longest + 1), shares, label=f"{row} (mean {sum(counts) / len(counts):.2f})",
            marker=MARKERS[number % len(MARKERS)], linestyle=LINES[number % len(LINES)],
        )  # fmt: skip
    axes.set(xlabel="tokens committed by a round", ylabel="share of rounds")
    axes.legend(fontsize=7)
    return figure


def width_over_rounds(samples: Sequence[Sample]) -> Any | None:
    """Rows verified round by round in the first generation of every adaptive row; None without one."""
    figure, axes = _figure()
    drawn = 0
    for row in dict.fromkeys(sample.row for sample in samples):
        first = next(sample for sample in samples if sample.row == row)
        if len(set(first.rows)) > 2 and row not in (PLAIN, CHAIN):
            axes.step(range(len(first.rows)), first.rows, where="mid", label=row, linestyle=LINES[drawn % len(LINES)])
            drawn += 1
    if not drawn:
        return None
    axes.set(xlabel="round of the generation", ylabel="rows verified (root counted)")
    axes.legend(fontsize=7)
    return figure


def stage_bars(lines: Sequence[Line]) -> Any | None:
    """Mean milliseconds of a round by stage, a bar a row; None where no run was timed by stage."""
    last = [line for line in lines if line.set_name == OVERALL and line.stage_s]
    if not last:
        return None
    figure, axes = _figure()
    bottom = [0.0] * len(last)
    hatches = ("", "//", "..", "xx", "\\\\", "oo", "--", "++", "**")
    for number, name in enumerate(last[0].stage_s):
        heights = [1e3 * line.stage_s.get(name, 0.0) for line in last]
        axes.bar(
            [line.row.label for line in last], heights, bottom=bottom, label=name,
            hatch=hatches[number % len(hatches)], edgecolor="black", linewidth=0.4,
        )  # fmt: skip
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set(ylabel="milliseconds of a round")
    axes.tick_params(axis="x", labelrotation=30)
    axes.legend(fontsize=7)
    return figure


def _figure() -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(alpha=0.3)
    return figure, axes
