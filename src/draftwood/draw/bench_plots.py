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
HATCHES = ("", "//", "..", "xx", "\\\\", "oo", "--", "++", "**")
FORMATS = ("png", "svg")
TITLES = {
    "speed": "Speed of every policy",
    "speed-by-budget": "Speed by fixed budget",
    "committed": "Tokens committed by a round",
    "width": "Rows verified, round by round, in the first answer",
    "stages": "Where a round's time goes",
}
PARTS = {"draft": "draft", "verify": "verify"}
"""Stages that stand for themselves in the picture; all others are the rest."""


def plots_available() -> bool:
    """True when matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def save_plots(run: BenchRun, samples: Sequence[Sample], folder: Path, machine: str = "") -> list[Path]:
    """Write every plot that the results allow as PNG and SVG; returns the files.

    Each says in its title what it shows, of which prompt sets, and on which `machine`.
    """
    written = []
    for panel in run.panels:
        lines = run.lines.get(panel.name, [])
        own = [sample for sample in samples if sample.panel == panel.name]
        stem = f"-{panel.name}".replace(" ", "-").replace("=", "") if panel.name else ""
        sets = ", ".join(dict.fromkeys(sample.set_name for sample in own))
        place = " · ".join(part for part in (sets, panel.name, machine) if part)
        made = {
            "speed": speed_bars(lines),
            "speed-by-budget": speed_by_budget(lines),
            "committed": committed_histogram(own),
            "width": width_over_rounds(own),
            "stages": stage_bars(lines),
        }
        for name, figure in made.items():
            if figure is None:
                continue
            figure.suptitle(f"{TITLES[name]}\n{place}", fontsize=9)
            for kind in FORMATS:
                data = io.BytesIO()
                figure.savefig(data, format=kind, dpi=144)
                written.append(folder / f"{name}{stem}.{kind}")
                write_file(written[-1], data.getvalue(), UsageError)
    return written


def speed_bars(lines: Sequence[Line]) -> Any | None:
    """Speed over `ar` of every row, with its interval, a group of bars a set; tokens per second where outputs differ.

    None without lines.
    """
    sets = [name for name in dict.fromkeys(line.set_name for line in lines) if name != OVERALL]
    if not sets:
        return None
    labels = list(dict.fromkeys(line.row.label for line in lines))
    relative = all(line.speedup_over_ar is not None for line in lines)
    field = "speedup_over_ar" if relative else "tokens_per_s"
    figure, axes = _figure(width=max(7.0, 1.2 + 0.45 * len(sets) * len(labels)))
    share = 0.8 / len(labels)
    for number, label in enumerate(labels):
        own = {line.set_name: line for line in lines if line.row.label == label}
        for place, name in enumerate(sets):
            line = own.get(name)
            value = None if line is None else getattr(line, field)
            if line is None or value is None:
                continue
            low, high = line.intervals.get(field, (value, value))
            axes.bar(
                place + (number - (len(labels) - 1) / 2) * share, value, share, yerr=[[value - low], [high - value]],
                capsize=2, color=f"C{number % 10}", hatch=HATCHES[number % len(HATCHES)], edgecolor="black",
                linewidth=0.4, label=label if place == 0 else None,
            )  # fmt: skip
    axes.set_xticks(range(len(sets)), sets)
    axes.set(ylabel="speed over plain decoding (x)" if relative else "tokens per second")
    if relative:
        axes.axhline(1.0, color="black", linewidth=0.8)
    _legend(figure)
    return figure


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
    share = 0.8 / len(lengths)
    for number, (row, counts) in enumerate(lengths.items()):
        places = range(1, max(counts) + 1)
        axes.bar(
            [place + (number - (len(lengths) - 1) / 2) * share for place in places],
            [counts.count(place) / len(counts) for place in places], share, color=f"C{number % 10}",
            hatch=HATCHES[number % len(HATCHES)], edgecolor="black", linewidth=0.4,
            label=f"{row} (mean {sum(counts) / len(counts):.2f})",
        )  # fmt: skip
    axes.set(xlabel="tokens committed by a round", ylabel="share of rounds")
    _legend(figure)
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
    """Mean milliseconds of a round: drafting, verification and the rest, a bar a row; None where nothing was timed."""
    last = [line for line in lines if line.set_name == OVERALL and line.stage_s]
    if not last:
        return None
    figure, axes = _figure()
    bottom = [0.0] * len(last)
    for number, name in enumerate((*PARTS, "rest")):
        heights = [
            1e3 * sum(seconds for stage, seconds in line.stage_s.items() if PARTS.get(stage, "rest") == name)
            for line in last
        ]
        axes.bar(
            [line.row.label for line in last], heights, bottom=bottom, label=name, hatch=HATCHES[number],
            edgecolor="black", linewidth=0.4,
        )  # fmt: skip
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set(ylabel="milliseconds of a round")
    axes.tick_params(axis="x", labelrotation=30)
    _legend(figure)
    return figure


def _legend(figure: Any) -> None:
    """Beside the axes, where it hides nothing."""
    figure.legend(loc="outside right upper", fontsize=7)


def _figure(width: float = 7.0) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    return figure, axes
